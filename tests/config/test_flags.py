"""The command line: every flag of the reference parses, by the rules of the reference."""

import json

import pytest

from vllm.engine.arg_forms import human_int
from vllm.engine.arg_parser import FlagParser
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.cli.serve import make_parser
from vllm.exceptions import ConfigError

# flag, words after it, the value it must give. One row per flag of the reference, groups 1.1-1.12.
FLAGS = [
    ("--model", ["m"], "m"), ("--runner", ["generate"], "generate"),
    ("--convert", ["none"], "none"), ("--task", ["generate"], "generate"),
    ("--tokenizer", ["t"], "t"), ("--tokenizer-mode", ["hf"], "hf"),
    ("--tokenizer-revision", ["r"], "r"), ("--revision", ["r"], "r"),
    ("--code-revision", ["r"], "r"), ("--trust-remote-code", [], True),
    ("--dtype", ["half"], "half"), ("--seed", ["7"], 7), ("--hf-config-path", ["p"], "p"),
    ("--config-format", ["hf"], "hf"), ("--hf-token", [], True), ("--hf-token", ["x"], "x"),
    ("--hf-overrides", ['{"a": {"b": 1}}'], {"a": {"b": 1}}),
    ("--model-impl", ["vllm"], "vllm"), ("--model-class-overrides", ["{}"], {}),
    ("--max-model-len", ["4k"], 4000), ("--max-model-len", ["-1"], "auto"),
    ("--max-model-len", ["auto"], "auto"), ("--served-model-name", ["a", "b"], ["a", "b"]),
    ("--generation-config", ["vllm"], "vllm"),
    ("--override-generation-config", ['{"top_k": 1}'], {"top_k": 1}),
    ("--skip-tokenizer-init", [], True), ("--enable-prompt-embeds", [], True),
    ("--allowed-local-media-path", ["/m"], "/m"), ("--allowed-media-domains", ["a"], ["a"]),
    ("--max-logprobs", ["-1"], -1), ("--logprobs-mode", ["raw_logits"], "raw_logits"),
    ("--logits-processors", ["m:C"], ["m:C"]), ("--io-processor-plugin", ["p"], "p"),
    ("--pooler-config", ['{"a":1}'], {"a": 1}), ("--disable-sliding-window", [], True),
    ("--enable-sleep-mode", [], True), ("--renderer-num-workers", ["3"], 3),
    ("--enable-return-routed-experts", [], True), ("--return-sampling-mask", [], True),
    ("--load-format", ["dummy"], "dummy"), ("--download-dir", ["d"], "d"),
    ("--safetensors-load-strategy", ["lazy"], "lazy"),
    ("--model-loader-extra-config", ["{}"], {}), ("--ignore-patterns", ["a", "b"], ["a", "b"]),
    ("--use-tqdm-on-load", [], True), ("--pt-load-map-location", ["cpu"], "cpu"),
    ("--limit-mm-per-prompt", ['{"image":4}'], {"image": 4}),
    ("--mm-processor-cache-gb", ["2.5"], 2.5), ("--mm-hasher-algorithm", ["sha256"], "sha256"),
    ("--video-pruning-rate", ["0.5"], 0.5),
    ("--gpu-memory-utilization", ["0.5"], 0.5), ("--kv-cache-memory-bytes", ["1G"], 1 << 30),
    ("--block-size", ["64"], 64), ("--kv-cache-dtype", ["float16"], "float16"),
    ("--num-gpu-blocks-override", ["9"], 9), ("--enable-prefix-caching", [], True),
    ("--no-enable-prefix-caching", [], False),
    ("--prefix-caching-hash-algo", ["sha256_cbor"], "sha256_cbor"),
    ("--swap-space", ["4"], 4.0), ("--cpu-offload-gb", ["1"], 1.0),
    ("--kv-offloading-size", ["1"], 1.0), ("--mamba-block-size", ["8"], 8),
    ("--disable-hybrid-kv-cache-manager", [], True),
    ("--distributed-executor-backend", ["mp"], "mp"), ("--tensor-parallel-size", ["2"], 2),
    ("-tp", ["2"], 2), ("-pp", ["2"], 2), ("-dp", ["2"], 2), ("-dpl", ["2"], 2),
    ("--data-parallel-rank", ["1"], 1), ("--data-parallel-address", ["h"], "h"),
    ("--data-parallel-hybrid-lb", [], True), ("--nnodes", ["2"], 2),
    ("--enable-expert-parallel", [], True), ("--eplb-config", ["{}"], {}),
    ("--decode-context-parallel-size", ["2"], 2), ("--enable-dbo", [], True),
    ("--max-num-batched-tokens", ["8K"], 8192), ("--max-num-seqs", ["16"], 16),
    ("--max-num-active-seqs", ["4"], 4), ("--max-num-scheduled-tokens", ["25.6k"], 25600),
    ("--max-num-queued-reqs", ["5"], 5), ("--max-num-queued-tokens", ["1k"], 1000),
    ("--enable-chunked-prefill", [], True), ("--no-enable-chunked-prefill", [], False),
    ("--long-prefill-token-threshold", ["64"], 64), ("--max-num-partial-prefills", ["2"], 2),
    ("--scheduling-policy", ["priority"], "priority"), ("--async-scheduling", [], True),
    ("--stream-interval", ["4"], 4), ("--scheduler-cls", ["m:C"], "m:C"),
    ("--watermark", ["0.1"], 0.1), ("--performance-mode", [], "throughput"),
    ("--performance-mode", ["interactivity"], "interactivity"),
    ("--quantization", ["gguf"], "gguf"), ("-q", ["awq"], "awq"),
    ("--speculative-config", ['{"method":"ngram"}'], {"method": "ngram"}),
    ("--spec-tokens", ["5"], 5), ("--enable-lora", [], True), ("--max-loras", ["4"], 4),
    ("--max-lora-rank", ["64"], 64), ("--lora-modules", ["a=b"], ["a=b"]),
    ("--attention-backend", ["CPU_ATTN"], "CPU_ATTN"), ("--enforce-eager", [], True),
    ("--optimization-level", ["3"], 3), ("-O3", [], 3), ("-O=3", [], 3), ("-O", ["3"], 3),
    ("--compilation-config", ['{"mode":3}'], {"mode": 3}),
    ("--cudagraph-capture-sizes", ["1", "2"], [1, 2]), ("--moe-backend", ["x"], "x"),
    ("--reasoning-parser", ["qwen3"], "qwen3"), ("--enable-auto-tool-choice", [], True),
    ("--tool-call-parser", ["hermes"], "hermes"),
    ("--structured-outputs-config", ["{}"], {}), ("--chat-template", ["t"], "t"),
    ("--chat-template-content-format", ["openai"], "openai"),
    ("--default-chat-template-kwargs", ['{"a":1}'], {"a": 1}),
    ("--trust-request-chat-template", [], True), ("--response-role", ["bot"], "bot"),
    ("--kv-transfer-config", ["{}"], {}), ("--kv-events-config", ["{}"], {}),
    ("--host", ["h"], "h"), ("--port", ["1"], 1), ("--uds", ["u"], "u"),
    ("--api-key", ["a", "b"], ["a", "b"]), ("--ssl-keyfile", ["k"], "k"),
    ("--allowed-origins", ['["x"]'], ["x"]), ("--root-path", ["/p"], "/p"),
    ("--disable-fastapi-docs", [], True), ("--uvicorn-log-level", ["debug"], "debug"),
    ("--enable-request-id-headers", [], True), ("--sse-keep-alive-interval", ["5"], 5),
    ("--enable-log-requests", [], True), ("--max-log-len", ["5"], 5),
    ("--shutdown-timeout", ["5"], 5), ("--enable-prompt-tokens-details", [], True),
    ("--otlp-traces-endpoint", ["u"], "u"), ("--enable-opentelemetry", [], True),
    ("--collect-detailed-traces", ["all"], ["all"]), ("--disable-log-stats", [], True),
    ("--profiler-config", ['{"enabled":true}'], {"enabled": True}),
    ("--custom-histogram-buckets", ['{"a":[1]}'], {"a": [1]}),
    ("--additional-config", ["{}"], {}), ("--device", ["cpu"], "cpu"),
    ("--fail-on-environ-validation", [], True),
]  # fmt: skip


def parse(*words: str) -> dict[str, object]:
    return vars(make_parser().parse_args(list(words)))


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as info:
        parse(*words)
    assert info.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("flag", "words", "expected"), FLAGS, ids=lambda x: str(x)[:40])
def test_every_flag_parses(flag: str, words: list[str], expected: object) -> None:
    values = parse(flag, *words)
    values.pop("model_tag", None)
    assert list(values.values()) == [expected]


@pytest.mark.parametrize(("text", "value"), [
    ("4096", 4096), ("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("2m", 2_000_000),
    ("2M", 2 << 20), ("1g", 10**9), ("1T", 1 << 40)])
def test_human_readable_integers(text: str, value: int) -> None:
    assert human_int(text) == value


def test_a_fraction_with_a_binary_suffix_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "25.6k" in refusal(capsys, "--max-num-batched-tokens", "25.6K")


def test_underscores_and_dashes_are_the_same() -> None:
    assert parse("--max_model_len", "8")["max_model_len"] == 8


def test_dotted_json_merges_and_appends() -> None:
    values = parse("--hf-overrides.rope.factor", "2", "--hf-overrides.rope.type=linear",
                   "--hf-overrides.list+", "1,2k", "--hf_overrides.list+=3",
                   "--hf-overrides", '{"list": [4], "x_y": null}')
    assert values["hf_overrides"] == {
        "rope": {"factor": 2, "type": "linear"}, "list": [1, 2000, 3, 4], "x_y": None}


def test_short_names_take_dots() -> None:
    assert parse("-cc.mode=3")["compilation_config"] == {"mode": 3}
    assert parse("-sc.method", "ngram")["speculative_config"] == {"method": "ngram"}


def test_none_means_null() -> None:
    assert parse("--tokenizer", "None")["tokenizer"] is None


def test_unknown_options_exit_with_2_and_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "m", "--max-model-length", "5")
    assert "unrecognized arguments: --max-model-length 5" in message
    assert "did you mean --max-model-len?" in message


def test_wrong_values_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice: 'half8'" in refusal(capsys, "--dtype", "half8")
    assert "--port" in refusal(capsys, "--port", "http")
    assert "not JSON" in refusal(capsys, "--hf-overrides", "{a")


def test_the_last_of_two_equal_flags_wins_with_a_warning(
        capsys: pytest.CaptureFixture[str]) -> None:
    assert parse("--seed", "1", "--seed", "2")["seed"] == 2
    assert "Found duplicate keys --seed" in capsys.readouterr().err


def test_config_file(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("model: from-file\nmax_model_len: 2k\nenable-prefix-caching: false\n"
                    "hf-overrides: {a: 1}\nserved-model-name: [x, y]\nenforce-eager: true\n")
    values = parse("--config", str(file))
    assert values == {
        "model": "from-file", "max_model_len": 2000, "enable_prefix_caching": False,
        "hf_overrides": {"a": 1}, "served_model_name": ["x", "y"], "enforce_eager": True}
    values = parse("given", "--config", str(file), "--max-model-len", "7")
    assert (values["model_tag"], values["max_model_len"]) == ("given", 7)
    assert "duplicate" not in capsys.readouterr().err


def test_config_file_must_be_yaml(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "must end in .yaml" in refusal(capsys, "--config", str(tmp_path / "a.json"))
    (tmp_path / "l.yaml").write_text("- a\n")
    assert "mapping" in refusal(capsys, "--config", str(tmp_path / "l.yaml"))


def test_help_lists_groups_flags_and_matches(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*words: str) -> str:
        with pytest.raises(SystemExit) as info:
            parse(*words)
        assert info.value.code == 0
        return capsys.readouterr().out

    assert "SchedulerConfig" in shown("--help") and "--max-num-seqs" not in shown("--help")
    assert "--max-num-seqs" in shown("--help=all")
    group = shown("--help=cacheconfig")
    assert "--block-size" in group and "--max-num-seqs" not in group
    found = shown("--help=max-num")
    assert "--max-num-batched-tokens" in found and "--block-size" not in found


@pytest.mark.parametrize("words", [
    ["--tensor-parallel-size", "2"], ["--enable-lora"], ["--speculative-config.method", "ngram"],
    ["--enable-sleep-mode"], ["--kv-transfer-config", '{"kv_role": "kv_both"}'],
    ["--reasoning-parser", "qwen3"], ["--limit-mm-per-prompt", '{"image": 1}'],
    ["--otlp-traces-endpoint", "http://x"], ["--trust-remote-code"], ["-tp", "2"]])
def test_features_that_are_missing_are_refused_by_name(words: list[str]) -> None:
    args = EngineArgs.from_cli_args(make_parser().parse_args(words))
    with pytest.raises(ConfigError, match=r"^--[a-z-]+: .* is not supported by this build yet"):
        args.create_engine_config()


def test_engine_args_refuse_unknown_names() -> None:
    with pytest.raises(ConfigError, match=r"max_model_length .* did you mean max_model_len\?"):
        EngineArgs("m", max_model_length=5)


def test_every_flag_has_help() -> None:
    parser: FlagParser = make_parser()
    without = [a.option_strings for a in parser._actions if not a.help]
    assert not without


def test_json_round_trip_of_a_resolved_config() -> None:
    from vllm.config import VllmConfig

    config = EngineArgs(max_model_len=64, max_num_seqs=2).create_engine_config("server")
    assert VllmConfig.from_json(config.to_json()) == config
    assert json.loads(config.to_json())["model_config"]["max_model_len"] == 64
