"""Every environment variable, one typed row each, read once when this module is imported.

Later changes of the environment have no effect. A value that can't be read is reported by
`check_environment` at start-up, which also names variables that this build does not use: nothing
is ignored in silence.
"""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from vllm.exceptions import ConfigError

T = TypeVar("T")

environ: Mapping[str, str] = os.environ
"""The environment, for what is handed on to child processes and shown by `collect-env`."""


@dataclass(frozen=True)
class Variable:
    """A row of the table: what a variable is and what it holds now."""

    name: str
    default: object
    value: object
    is_set: bool
    meaning: str


VARIABLES: dict[str, Variable] = {}
_errors: list[str] = []


def _row(name: str, default: T, parse: Callable[[str], T], meaning: str) -> T:
    text = environ.get(name)
    value = default
    if text is not None:
        try:
            value = parse(text)
        except ValueError as error:
            _errors.append(f"{name} is {text!r}; it must be {error}.")
    VARIABLES[name] = Variable(name, default, value, text is not None, meaning)
    return value


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("an integer") from None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("0", "1", "true", "false", ""):
        raise ValueError("0 or 1")
    return word in ("1", "true")


def _choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError("one of " + ", ".join(words))
        return text.lower()

    return parse


def _level(text: str) -> str:
    return _choice("debug", "info", "warning", "error", "critical")(text).upper()


def _port(text: str) -> int:
    if "://" in text:
        raise ValueError(
            "a port number; Kubernetes sets this variable for a service named 'vllm': "
            "rename the service"
        )
    return _int(text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _base(variable: str, fallback: str) -> str:
    root = environ.get(variable) or os.path.join(os.path.expanduser("~"), fallback)
    return os.path.join(root, "vllm")


# ---- runtime core ----------------------------------------------------------------------------

VLLM_API_KEY = _row("VLLM_API_KEY", None, str, "bearer key that requests must carry")
VLLM_PORT = _row("VLLM_PORT", None, _port, "first port for communication between processes")
VLLM_HOST_IP = _row("VLLM_HOST_IP", "", str, "address of this node between processes")
VLLM_RPC_BASE_PATH = _row(
    "VLLM_RPC_BASE_PATH", None, str, "directory under which private sockets are made")
VLLM_RPC_TIMEOUT = _row(
    "VLLM_RPC_TIMEOUT", 10000, _int, "milliseconds a control call to the engine may take")
VLLM_ENGINE_ITERATION_TIMEOUT_S = _row(
    "VLLM_ENGINE_ITERATION_TIMEOUT_S", 60, _int, "seconds without progress of a busy engine")
VLLM_ENGINE_READY_TIMEOUT_S = _row(
    "VLLM_ENGINE_READY_TIMEOUT_S", 600, _int, "seconds the engine may take to start")
VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS = _row(
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", 5, _int, "seconds the engine process may take to end")
VLLM_ENABLE_V1_MULTIPROCESSING = _row(
    "VLLM_ENABLE_V1_MULTIPROCESSING", True, _flag, "engine core in a process of its own")
VLLM_KEEP_ALIVE_ON_ENGINE_DEATH = _row(
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", False, _flag,
    "keep the HTTP server up when the engine can't be restarted")
VLLM_HTTP_TIMEOUT_KEEP_ALIVE = _row(
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 5, _int, "seconds an idle connection is kept")
VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT = _row(
    "VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT", 30.0, _float,
    "seconds a chat template may run; 0 = no limit")
VLLM_SERVER_DEV_MODE = _row("VLLM_SERVER_DEV_MODE", False, _flag, "development endpoints")
VLLM_PLUGINS = _row("VLLM_PLUGINS", None, _names, "plugins to load; unset = all, empty = none")
VLLM_CONFIG_ROOT = _row(
    "VLLM_CONFIG_ROOT", _base("XDG_CONFIG_HOME", ".config"), str, "directory of settings")
VLLM_CACHE_ROOT = _row(
    "VLLM_CACHE_ROOT", _base("XDG_CACHE_HOME", ".cache"), str, "directory of caches")
VLLM_ALLOW_LONG_MAX_MODEL_LEN = _row(
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN", False, _flag, "allow a --max-model-len above the model's")
VLLM_SKIP_MODEL_NAME_VALIDATION = _row(
    "VLLM_SKIP_MODEL_NAME_VALIDATION", False, _flag, "accept any model name in requests")
VLLM_MAX_N_SEQUENCES = _row("VLLM_MAX_N_SEQUENCES", 16384, _int, "largest `n` of a request")
VLLM_MAX_COMPLETION_PROMPTS = _row(
    "VLLM_MAX_COMPLETION_PROMPTS", 1024, _int, "most prompts of one completion request")
VLLM_MAX_STOP_STRINGS = _row(
    "VLLM_MAX_STOP_STRINGS", 4, _int, "most stop strings of a request")
VLLM_MAX_NUM_BAD_WORDS = _row("VLLM_MAX_NUM_BAD_WORDS", 128, _int, "most bad words of a request")
VLLM_MAX_BAD_WORDS_TOTAL_TOKENS = _row(
    "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS", 1024, _int, "most tokens of all bad words together")
VLLM_DISABLE_REQUEST_ID_RANDOMIZATION = _row(
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", False, _flag,
    "use the caller's request id inside the engine")
VLLM_V1_OUTPUT_PROC_CHUNK_SIZE = _row(
    "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", 128, _int, "outputs handled before the event loop may go on")
VLLM_PROCESS_NAME_PREFIX = _row(
    "VLLM_PROCESS_NAME_PREFIX", "VLLM", str, "first part of process titles")
VLLM_ALLOW_INSECURE_SERIALIZATION = _row(
    "VLLM_ALLOW_INSECURE_SERIALIZATION", False, _flag, "refused: processes never exchange pickle")
VLLM_BATCH_INVARIANT = _row(
    "VLLM_BATCH_INVARIANT", True, _flag, "results independent of the batch; always so on CPU")
VLLM_USE_V1 = _row("VLLM_USE_V1", True, _flag, "older engine switch; there is one engine")
HF_TOKEN = _row("HF_TOKEN", None, str, "token of the model hub")
HF_HUB_OFFLINE = _row("HF_HUB_OFFLINE", False, _flag, "use the hub's cache alone")

# ---- logging and statistics ------------------------------------------------------------------

VLLM_CONFIGURE_LOGGING = _row(
    "VLLM_CONFIGURE_LOGGING", True, _flag, "0 leaves Python's logging as it is")
VLLM_LOGGING_LEVEL = _row(
    "VLLM_LOGGING_LEVEL", "INFO", _level, "DEBUG, INFO, WARNING, ERROR or CRITICAL")
VLLM_LOGGING_CONFIG_PATH = _row(
    "VLLM_LOGGING_CONFIG_PATH", None, str, "dictConfig file, JSON or YAML")
VLLM_LOGGING_COLOR = _row(
    "VLLM_LOGGING_COLOR", "auto", _choice("auto", "always", "never", "0", "1"), "colour of levels")
VLLM_LOGGING_PREFIX = _row("VLLM_LOGGING_PREFIX", "", str, "text before each line")
VLLM_LOGGING_STREAM = _row(
    "VLLM_LOGGING_STREAM", "ext://sys.stdout",
    _choice("ext://sys.stdout", "ext://sys.stderr"), "where the log goes")
VLLM_LOG_STATS_INTERVAL = _row(
    "VLLM_LOG_STATS_INTERVAL", 10.0, _float, "seconds between two lines of statistics")
NO_COLOR = _row("NO_COLOR", False, lambda text: text != "", "no colour")
FORCE_COLOR = _row("FORCE_COLOR", False, lambda text: text not in ("", "0"), "always colour")
VLLM_NO_USAGE_STATS = _row(
    "VLLM_NO_USAGE_STATS", True, _flag, "this build never sends usage statistics")
VLLM_DO_NOT_TRACK = _row(
    "VLLM_DO_NOT_TRACK", True, _flag, "this build never sends usage statistics")
DO_NOT_TRACK = _row("DO_NOT_TRACK", True, _flag, "this build never sends usage statistics")

# ---- CPU -------------------------------------------------------------------------------------

VLLM_CPU_KVCACHE_SPACE = _row(
    "VLLM_CPU_KVCACHE_SPACE", None, _float, "size of the KV cache in GiB")
VLLM_CPU_OMP_THREADS_BIND = _row(
    "VLLM_CPU_OMP_THREADS_BIND", "auto", str, "CPUs of the threads: 0-3, 0,2, nobind or auto")
VLLM_CPU_NUM_OF_RESERVED_CPU = _row(
    "VLLM_CPU_NUM_OF_RESERVED_CPU", None, _int, "CPUs that are left to others")
VLLM_CPU_ISA = _row(
    "VLLM_CPU_ISA", None, str, "kernels to use instead of the best that the CPU has")
VLLM_TARGET_DEVICE = _row(
    "VLLM_TARGET_DEVICE", "cpu", _choice("cpu", "empty"), "device that is built for")
MAX_JOBS = _row("MAX_JOBS", None, _int, "parallel compile jobs of a build")

# Names of vLLM whose feature is not in this build. A trailing * stands for any ending.
_UNUSED = tuple("""\
VLLM_ADAPTIVE_* VLLM_ALLOW_CHUNKED_* VLLM_ALLOW_RUNTIME_LORA_UPDATING VLLM_ALLREDUCE_*
VLLM_ASSETS_CACHE VLLM_ATTENTION_BACKEND VLLM_AUDIO_* VLLM_B12X_* VLLM_BUILD_* VLLM_COMPILE_*
VLLM_COMPUTE_NANS_IN_LOGITS VLLM_CPU_ATTN_SPLIT_KV VLLM_CPU_CI_ENV VLLM_CPU_INT4_W4A8 VLLM_CUDART_*
VLLM_CUDA_* VLLM_CUSTOM_SCOPES_FOR_PROFILING VLLM_DBO_* VLLM_DCP_* VLLM_DEBUG_* VLLM_DEEPEP_*
VLLM_DEEP_GEMM_* VLLM_DISABLE_* VLLM_DISABLED_KERNELS VLLM_DISTRIBUTED_* VLLM_DOCKER_* VLLM_DP_*
VLLM_EC_* VLLM_ELASTIC_* VLLM_ENABLE_* VLLM_ENFORCE_STRICT_TOOL_CALLING VLLM_EXECUTE_MODEL_*
VLLM_FASTSAFETENSORS_* VLLM_FLASHINFER_* VLLM_FLOAT32_* VLLM_FORCE_AOT_LOAD VLLM_GC_DEBUG
VLLM_GDN_* VLLM_GPT_OSS_* VLLM_GPU_* VLLM_HUMMING_* VLLM_IMAGE_* VLLM_KIMI_* VLLM_KV_*
VLLM_LOG_BATCHSIZE_INTERVAL VLLM_LOG_MODEL_INSPECTION
VLLM_LOOPBACK_IP VLLM_LORA_* VLLM_MAIN_CUDA_VERSION VLLM_MARLIN_* VLLM_MAX_AUDIO_*
VLLM_MAX_EMBED_DECODE_BYTES VLLM_MAX_IMAGE_PIXELS VLLM_MAX_MEDIA_* VLLM_MEDIA_* VLLM_MEMORY_*
VLLM_MLA_DISABLE VLLM_MODEL_REDIRECT_PATH VLLM_MOE_* VLLM_MOONCAKE_* VLLM_MQ_* VLLM_MSGPACK_*
VLLM_MXFP4* VLLM_NCCL_* VLLM_NIC_* VLLM_NIXL_* VLLM_NVTX_* VLLM_OBJECT_STORAGE_* VLLM_P2P_*
VLLM_PATTERN_* VLLM_PP_* VLLM_PRECOMPILED_* VLLM_RAISE_* VLLM_RANDOMIZE_* VLLM_RAY_*
VLLM_REGEX_COMPILATION_TIMEOUT_S VLLM_REPLICATE_EMBED VLLM_RINGBUFFER_* VLLM_ROCM_* VLLM_RUST_*
VLLM_SKIP_P2P_CHECK VLLM_SKIP_PRECOMPILED_* VLLM_SPARSE_* VLLM_SSM_* VLLM_SYSTEM_START_DATE
VLLM_TOOL_* VLLM_TPU_* VLLM_TRACE_FUNCTION VLLM_TRITON_* VLLM_TUNED_CONFIG_FOLDER VLLM_USAGE_*
VLLM_USE_* VLLM_V1_USE_OUTLINES_CACHE VLLM_VIDEO_* VLLM_WEIGHT_* VLLM_WORKER_MULTIPROC_METHOD
VLLM_WSL2_* VLLM_XGRAMMAR_CACHE_MB VLLM_XLA_* VLLM_XPU_* VLLM_ZENTORCH_* VLLM_IMAGE_TAG
""".split())  # noqa: SIM905


def _is_unused(name: str) -> bool:
    return any(
        name.startswith(row[:-1]) if row.endswith("*") else name == row for row in _UNUSED)


def check_environment(fail_on_unknown: bool = False) -> list[str]:
    """Warnings about variables that have no effect.

    Raises ConfigError for values that can't be read, and for unknown names if `fail_on_unknown`.
    """
    if _errors:
        raise ConfigError(" ".join(_errors))
    if VLLM_ALLOW_INSECURE_SERIALIZATION:
        raise ConfigError("VLLM_ALLOW_INSECURE_SERIALIZATION=1 is refused: messages between "
                          "processes are msgpack, never pickle. Unset it.")
    warnings = []
    for name in sorted(environ):
        if not name.startswith("VLLM_") or name in VARIABLES:
            continue
        if _is_unused(name):
            warnings.append(f"{name} is set, but this build does not use it.")
            continue
        close = difflib.get_close_matches(name, VARIABLES, n=1)
        message = f"{name} is not a known variable" + (f"; did you mean {close[0]}?" if close
                                                       else ".")
        if fail_on_unknown:
            raise ConfigError(message)
        warnings.append(message)
    return warnings
