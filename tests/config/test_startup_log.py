"""The lines that a start leaves in the log: complete, greppable, without secrets."""

from vllm.engine.arg_utils import EngineArgs
from vllm.engine.startup_log import config_lines, engine_lines, options_line
from vllm.utils.startup import StartupTimer, seconds_since_process_start


def test_lines_of_a_config_and_an_engine() -> None:
    config = EngineArgs(max_model_len=1024, max_num_seqs=2).create_engine_config("server")
    lines = config_lines(config)
    assert len(lines) == 5
    assert "SmolLM2-135M-Instruct (LlamaForCausalLM, 30 layers) from /" in lines[0]
    assert lines[1] == ("dtype float16, KV cache float16, context 1,024 tokens, 2 requests at "
                        "once, 2,048 tokens per step")
    assert "from what 2 requests can use" in lines[3]
    assert "Maximum concurrency for 1,024 tokens per request: 2.0" in lines[4]
    phases = {"import the engine": 0.5, "load weights": 0.25, "allocate KV cache, warm up": 0.125}
    kernels, loading, init = engine_lines(config, "avx2, 2 threads", phases)
    assert kernels.endswith("kernels avx2, 2 threads")
    assert loading == "Model loading took 0.11 GiB and 0.25 seconds"
    assert init == ("init engine (profile, create kv cache, warmup model) took 0.62 seconds")


def test_options_are_shown_without_secrets_and_cut() -> None:
    line = options_line({"api_key": ["k"], "max_num_seqs": 2, "chat_template": "x" * 9999})
    assert line.startswith("--api-key (hidden), --max-num-seqs 2, --chat-template xxx")
    assert len(line) < 410


def test_phases_add_up_to_the_age_of_the_process() -> None:
    timer = StartupTimer()
    timer.end_phase("a")
    timer.end_phase("b")
    timer.end_phase("a")
    assert list(timer.phases) == ["start Python, import", "a", "b"]
    assert abs(timer.total_s - seconds_since_process_start()) < 0.05
    table = timer.lines({"load weights": 0.5})
    assert len(table) == 2 and "load weights 0.50" in table[1]
