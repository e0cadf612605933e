"""From flags to a resolved config: the memory plan, cross-checks, threads, memory limits."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from vllm.config.vllm import VllmConfig, check
from vllm.engine.arg_utils import EngineArgs
from vllm.engine.memory_plan import HEADROOM, plan_memory
from vllm.exceptions import ConfigError
from vllm.utils.memory import MemoryLimit, memory_limit
from vllm.utils.threads import compute_cpus, format_cpus, parse_cpus

GIB = 1 << 30
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512,
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "eos_token_id": 2, "bos_token_id": 1,
}
# Keys and values of one token in all layers, 16-bit: 2 x 4 layers x 2 heads x 16 x 2 bytes.
TOKEN_BYTES = 512


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return str(tmp_path)


def resolve(model: str, **values: object) -> VllmConfig:
    return EngineArgs(model, load_format="dummy", **values).create_engine_config("server")


def test_defaults_of_server_and_library(model: str) -> None:
    server = resolve(model).scheduler_config
    library = EngineArgs(model, load_format="dummy").create_engine_config().scheduler_config
    assert (server.max_num_batched_tokens, server.max_num_seqs) == (2048, 128)
    assert (library.max_num_batched_tokens, library.max_num_seqs) == (4096, 256)
    doubled = resolve(model, performance_mode="throughput").scheduler_config
    assert (doubled.max_num_batched_tokens, doubled.max_num_seqs) == (4096, 256)
    quick = resolve(model, performance_mode="interactivity").scheduler_config
    assert (quick.max_num_batched_tokens, quick.max_num_seqs) == (1024, 128)


@pytest.mark.parametrize(("asked", "dtype", "kv"), [
    ("auto", "bfloat16", "float16"), ("half", "float16", "float16"),
    ("float", "float32", "float32"), ("float32", "float32", "float32")])
def test_dtype(model: str, asked: str, dtype: str, kv: str) -> None:
    config = resolve(model, dtype=asked)
    assert (config.model_config.dtype, config.cache_config.kv_cache_dtype) == (dtype, kv)


def test_kv_cache_is_capped_by_what_requests_can_use(model: str) -> None:
    config = resolve(model, max_num_seqs=2, max_model_len=1024)
    blocks = config.cache_config.num_gpu_blocks
    assert 2 * 1024 // 32 <= blocks <= 2 * 1024 // 32 + 4
    assert config.memory_plan.page == 32 * TOKEN_BYTES


def test_kv_cache_gets_what_the_others_leave(model: str) -> None:
    config = resolve(model)
    limit = MemoryLimit(total=2 * GIB, available=GIB, source="cgroup")
    big = replace(config.scheduler_config, max_num_seqs=20_000, max_num_batched_tokens=20_000)
    plan = plan_memory(replace(config, scheduler_config=big), limit).memory_plan
    left = GIB - plan.weights - plan.activations - HEADROOM
    assert plan.kv_cache == left // plan.page * plan.page
    assert plan.num_blocks == left // plan.page
    assert plan.num_tokens == pytest.approx((plan.num_blocks - 1) * 32, rel=0.01)


@pytest.mark.parametrize(("values", "origin"), [
    ({"kv_cache_memory_bytes": 1 << 20}, "--kv-cache-memory-bytes"),
    ({"num_gpu_blocks_override": 40}, "--num-gpu-blocks-override")])
def test_explicit_sizes_win(model: str, values: dict[str, object], origin: str) -> None:
    plan = resolve(model, max_model_len=512, **values).memory_plan
    assert plan.kv_origin == origin
    expected = 40 if "num_gpu_blocks_override" in values else (1 << 20) // plan.page
    assert plan.num_blocks == expected


def test_too_small_a_cache_names_a_length_that_fits(model: str) -> None:
    with pytest.raises(ConfigError, match=r"of 1,024 tokens needs .* GiB") as info:
        resolve(model, kv_cache_memory_bytes=TOKEN_BYTES * 512)
    fits = int(str(info.value).split("--max-model-len ")[1].split(",")[0])
    assert 0 < fits < 512
    assert resolve(model, kv_cache_memory_bytes=TOKEN_BYTES * 512, max_model_len=fits)


def test_no_memory_at_all_says_where_it_went(model: str) -> None:
    limit = MemoryLimit(total=GIB, available=GIB // 4, source="cgroup")
    with pytest.raises(ConfigError) as info:
        plan_memory(resolve(model), limit)
    # 1024 tokens are 32 blocks, and one block is reserved.
    needed = 33 * 32 * TOKEN_BYTES
    assert "but 0.00 GiB are available (free memory: 0.25 GiB less 0.00 for" in str(info.value)
    assert f"No request fits: give it more memory, with --kv-cache-memory-bytes {needed} " in str(
        info.value)
    assert resolve(model, kv_cache_memory_bytes=needed).cache_config.num_gpu_blocks == 33
    with pytest.raises(ConfigError):
        resolve(model, kv_cache_memory_bytes=needed - 1)


def test_a_cache_larger_than_the_machine_is_refused(model: str) -> None:
    pages = 1 << 40
    with pytest.raises(ConfigError, match=r"--num-gpu-blocks-override\) and .* are more than the"):
        resolve(model, num_gpu_blocks_override=pages)


def test_auto_length_is_the_longest_that_fits(model: str) -> None:
    config = resolve(model, kv_cache_memory_bytes=TOKEN_BYTES * 512, max_model_len="auto")
    assert 256 <= config.model_config.max_model_len < 512
    assert resolve(model, max_model_len="auto").model_config.max_model_len == 1024
    with pytest.raises(ConfigError):
        resolve(model, kv_cache_memory_bytes=TOKEN_BYTES * 512,
                max_model_len=config.model_config.max_model_len + 1)


def test_length_above_the_model_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match=r"2048, but the model was made for at most 1024"):
        resolve(model, max_model_len=2048)


@pytest.mark.parametrize(("values", "message"), [
    ({"max_num_batched_tokens": 512, "enable_chunked_prefill": False}, "chunked prefill"),
    ({"max_num_batched_tokens": 4, "max_num_seqs": 8}, "below --max-num-seqs"),
    ({"long_prefill_token_threshold": 4096}, "long-prefill-token-threshold"),
    ({"max_num_active_seqs": 500}, "--max-num-active-seqs"),
    ({"block_size": 24}, "multiple of 16"), ({"block_size": 0}, "multiple of 16"),
    ({"gpu_memory_utilization": 0.0}, "--gpu-memory-utilization"),
    ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization"),
    ({"num_gpu_blocks_override": 1}, "--num-gpu-blocks-override"),
    ({"watermark": 1.0}, "--watermark"), ({"stream_interval": 0}, "--stream-interval"),
    ({"max_logprobs": -2}, "--max-logprobs"), ({"runner": "pooling"}, "--runner pooling"),
    ({"task": "embed"}, "--task embed"), ({"optimization_level": 4}, "--optimization-level"),
    ({"distributed_executor_backend": "ray"}, "--distributed-executor-backend"),
    ({"attention_backend": "flashinfer"}, "--attention-backend"),
    ({"quantization": "awq"}, "--quantization awq"),
    ({"model_impl": "transformers"}, "model-impl")])
def test_cross_checks(model: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(model, **values)


def test_older_forms(model: str) -> None:
    assert resolve(model, compilation_config={"optimization_level": 3}).compilation_config \
        .optimization_level == 3
    assert resolve(model, compilation_config=3).compilation_config.optimization_level == 3
    assert resolve(model, attention_backend="cpu_attn", swap_space=4.0)
    check(resolve(model, task="generate"))


# ---- limits of the machine -------------------------------------------------------------------


def fake_system(tmp_path: Path, groups: dict[str, str], line: str) -> tuple[Path, Path]:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n")
    (proc / "self/cgroup").write_text(line + "\n")
    for name, text in groups.items():
        (cgroup / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroup / name).write_text(text)
    return proc, cgroup


def test_ram_alone(tmp_path: Path) -> None:
    limit = memory_limit(*fake_system(tmp_path, {}, "0::/"))
    assert limit == MemoryLimit(8 * GIB, 6 * GIB, "RAM")


def test_cgroup_version_2_of_this_process_or_a_parent(tmp_path: Path) -> None:
    files = {"a/memory.max": str(2 * GIB), "a/memory.current": str(GIB),
             "a/memory.stat": f"anon 5\ninactive_file {GIB // 4}\n",
             "a/b/memory.max": "max", "a/b/memory.current": "1"}
    limit = memory_limit(*fake_system(tmp_path, files, "0::/a/b"))
    assert limit == MemoryLimit(2 * GIB, GIB + GIB // 4, "cgroup")


def test_cgroup_version_1(tmp_path: Path) -> None:
    files = {"memory/x/memory.limit_in_bytes": str(GIB), "memory/x/memory.usage_in_bytes": "0",
             "memory/memory.limit_in_bytes": str(2**63 - 4096)}
    limit = memory_limit(*fake_system(tmp_path, files, "5:memory:/x"))
    assert limit == MemoryLimit(GIB, GIB, "cgroup")


def test_threads_follow_the_mask_the_quota_and_the_reserve(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    system = fake_system(tmp_path, {}, "0::/")
    assert compute_cpus("auto", None, *system) == (len(allowed), ())
    assert compute_cpus("nobind", len(allowed), *system) == (1, ())
    assert compute_cpus(f"{allowed[0]}", None, *system) == (1, (allowed[0],))
    assert compute_cpus(f"{allowed[0]}|9999", None, *system) == (1, (allowed[0],))


@pytest.mark.parametrize(("files", "line", "count"), [
    ({"cpu.max": "150000 100000"}, "0::/", 1),
    ({"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 1),
    ({"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"}, "1:cpu:/x", 1),
    ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu,cpuacct:/", None),
    ({"cpu.max": "max 100000"}, "0::/of/the/host", None)])
def test_quota_of_this_group_or_a_parent(
        tmp_path: Path, files: dict[str, str], line: str, count: int | None) -> None:
    allowed = len(os.sched_getaffinity(0))
    found = compute_cpus("auto", None, *fake_system(tmp_path, files, line))[0]
    assert found == (allowed if count is None else min(allowed, count))


@pytest.mark.parametrize("text", ["x", "3-1", "-1", "1,,2"])
def test_cpu_lists_that_are_wrong(text: str) -> None:
    with pytest.raises(ConfigError, match="VLLM_CPU_OMP_THREADS_BIND"):
        parse_cpus(text)


def test_cpu_lists() -> None:
    assert parse_cpus("0-2,5,1") == [0, 1, 2, 5]
    assert format_cpus([0, 1, 2, 5]) == "0-2,5"
    with pytest.raises(ConfigError, match="CPU 99999 is not available"):
        compute_cpus("99999", None)
