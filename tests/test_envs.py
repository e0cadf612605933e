"""Environment variables: typed, read once, wrong and unknown ones reported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm import envs


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    return subprocess.run([sys.executable, "-c", code], env=keep | variables, text=True,
                          capture_output=True, check=False)


@pytest.mark.parametrize(("name", "text", "value"), [
    ("VLLM_MAX_N_SEQUENCES", "7", "7"), ("VLLM_LOG_STATS_INTERVAL", "2.5", "2.5"),
    ("VLLM_SERVER_DEV_MODE", "1", "True"), ("VLLM_SERVER_DEV_MODE", "true", "True"),
    ("VLLM_PLUGINS", "a, b", "['a', 'b']"), ("VLLM_PLUGINS", "", "[]"),
    ("VLLM_LOGGING_LEVEL", "debug", "'DEBUG'"), ("VLLM_API_KEY", "k", "'k'")])
def test_values_are_typed(name: str, text: str, value: str) -> None:
    code = f"from vllm import envs; print(repr(envs.{name}))"
    assert run(code, **{name: text}).stdout.strip() == value


CHECK = "from vllm import envs; print(envs.check_environment({}))"


@pytest.mark.parametrize(("name", "text", "allowed"), [
    ("VLLM_MAX_N_SEQUENCES", "many", "an integer"), ("VLLM_LOGGING_COLOR", "red", "auto, always"),
    ("VLLM_SERVER_DEV_MODE", "2", "0 or 1"), ("VLLM_PORT", "tcp://10.0.0.1:80", "Kubernetes"),
    ("VLLM_ALLOW_INSECURE_SERIALIZATION", "1", "never pickle")])
def test_wrong_values_are_errors(name: str, text: str, allowed: str) -> None:
    result = run(CHECK.format(""), **{name: text})
    assert result.returncode == 1
    assert name in result.stderr and allowed in result.stderr


def test_unknown_names_warn_or_fail() -> None:
    assert "did you mean VLLM_API_KEY?" in run(CHECK.format(""), VLLM_API_KEYS="x").stdout
    result = run(CHECK.format("True"), VLLM_API_KEYS="x")
    assert result.returncode == 1 and "VLLM_API_KEYS is not a known variable" in result.stderr


def test_names_of_missing_features_are_named() -> None:
    assert "VLLM_DP_SIZE is set, but this build does not use it." in run(
        CHECK.format("True"), VLLM_DP_SIZE="2").stdout
    assert ("['VLLM_NCCL_SO_PATH, VLLM_ROCM_USE_AITER are set, but this build does not use them.']"
            in run(CHECK.format("True"), VLLM_ROCM_USE_AITER="1", VLLM_NCCL_SO_PATH="x").stdout)


def test_values_that_change_nothing_are_named() -> None:
    output = run(CHECK.format("True"), VLLM_BATCH_INVARIANT="0", VLLM_NO_USAGE_STATS="1").stdout
    assert "VLLM_BATCH_INVARIANT=0 has no effect: results never depend on the batch" in output
    assert "VLLM_NO_USAGE_STATS" not in output


# Variables of the reference that a CPU or a feature of this build has a use for.
REFERENCE = """
VLLM_API_KEY VLLM_ENGINE_READY_TIMEOUT_S VLLM_RPC_BASE_PATH VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS
VLLM_ENABLE_V1_MULTIPROCESSING VLLM_KEEP_ALIVE_ON_ENGINE_DEATH VLLM_HTTP_TIMEOUT_KEEP_ALIVE
VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT VLLM_SERVER_DEV_MODE VLLM_PLUGINS VLLM_ALLOW_LONG_MAX_MODEL_LEN
VLLM_SKIP_MODEL_NAME_VALIDATION VLLM_MAX_N_SEQUENCES VLLM_MAX_COMPLETION_PROMPTS
VLLM_MAX_STOP_STRINGS VLLM_MAX_NUM_BAD_WORDS VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
VLLM_DISABLE_REQUEST_ID_RANDOMIZATION VLLM_V1_OUTPUT_PROC_CHUNK_SIZE VLLM_PROCESS_NAME_PREFIX
HF_TOKEN VLLM_CONFIGURE_LOGGING VLLM_LOGGING_LEVEL VLLM_LOGGING_CONFIG_PATH VLLM_LOGGING_COLOR
VLLM_LOGGING_PREFIX VLLM_LOGGING_STREAM VLLM_LOG_STATS_INTERVAL VLLM_CPU_KVCACHE_SPACE
VLLM_CPU_OMP_THREADS_BIND VLLM_CPU_NUM_OF_RESERVED_CPU VLLM_TARGET_DEVICE NO_COLOR FORCE_COLOR
""".split()  # noqa: SIM905

# Rows that are read by somebody else: the hub's client, the build, the table's own check.
ELSEWHERE = {"HF_HUB_OFFLINE", "MAX_JOBS", "VLLM_ALLOW_INSECURE_SERIALIZATION"}


def test_every_row_is_used_and_every_known_name_is_a_row() -> None:
    """A row that nothing reads would be accepted and ignored."""
    root = Path(envs.__file__).parent
    source = "".join(path.read_text() for path in root.rglob("*.py") if path.name != "envs.py")
    unread = {name for name in envs.VARIABLES if f"envs.{name}" not in source}
    assert unread == ELSEWHERE | set(envs._FIXED)
    assert set(REFERENCE) <= set(envs.VARIABLES)


def test_an_interval_of_zero_is_the_default() -> None:
    code = "from vllm import envs; print(envs.VLLM_LOG_STATS_INTERVAL)"
    assert run(code, VLLM_LOG_STATS_INTERVAL="0").stdout.strip() == "10.0"
    assert run(code, VLLM_LOG_STATS_INTERVAL="-1").stdout.strip() == "10.0"


def test_nothing_is_said_of_variables_that_work() -> None:
    assert run(CHECK.format(""), VLLM_LOGGING_LEVEL="INFO").stdout.strip() == "[]"
