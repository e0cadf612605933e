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


def _interval(text: str) -> float:
    seconds = _float(text)
    return seconds if seconds > 0 else 10.0


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


# ---- runtime core ----------------------------------------------------------------------------

VLLM_API_KEY = _row("VLLM_API_KEY", None, str, "bearer key that requests must carry")
VLLM_RPC_BASE_PATH = _row(
    "VLLM_RPC_BASE_PATH", None, str, "directory under which private sockets are made")
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
    "VLLM_BATCH_INVARIANT", True, _flag, "results never depend on the batch, also without it")
VLLM_USE_V1 = _row("VLLM_USE_V1", True, _flag, "older switch; there is one engine")
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
    "VLLM_LOG_STATS_INTERVAL", 10.0, _interval, "seconds between two lines of statistics")
NO_COLOR = _row("NO_COLOR", False, lambda text: text != "", "no colour")
FORCE_COLOR = _row("FORCE_COLOR", False, lambda text: text not in ("", "0"), "always colour")
VLLM_NO_USAGE_STATS = _row(
    "VLLM_NO_USAGE_STATS", True, _flag, "usage statistics are never sent, also without it")
VLLM_DO_NOT_TRACK = _row(
    "VLLM_DO_NOT_TRACK", True, _flag, "usage statistics are never sent, also without it")
DO_NOT_TRACK = _row("DO_NOT_TRACK", True, _flag, "usage statistics are never sent, also without it")

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

# Rows with a value that nothing depends on; another value than the default has no effect.
_FIXED = ("VLLM_BATCH_INVARIANT", "VLLM_USE_V1", "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK",
          "DO_NOT_TRACK")

# Names of vLLM whose feature is not in this build. A trailing * stands for any ending.
_UNUSED = tuple("""\
VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE
VLLM_ALLOW_RUNTIME_LORA_UPDATING VLLM_ALLREDUCE_USE_FLASHINFER VLLM_ALLREDUCE_USE_SYMM_MEM
VLLM_ASSETS_CACHE VLLM_ATTENTION_BACKEND VLLM_AUDIO_FETCH_TIMEOUT VLLM_B12X_* VLLM_BUILD_COMMIT
VLLM_BUILD_PIPELINE VLLM_BUILD_URL VLLM_CACHE_ROOT VLLM_COMPILE_CACHE_SAVE_FORMAT
VLLM_COMPUTE_NANS_IN_LOGITS VLLM_CONFIG_ROOT VLLM_CPU_ATTN_SPLIT_KV VLLM_CPU_CI_ENV
VLLM_CPU_INT4_W4A8 VLLM_CUDART_SO_PATH VLLM_CUDA_COMPATIBILITY_PATH
VLLM_CUSTOM_SCOPES_FOR_PROFILING VLLM_DBO_COMM_SMS VLLM_DCP_Q_REPLICATE VLLM_DEBUG_DUMP_PATH
VLLM_DEBUG_LOG_API_SERVER_RESPONSE VLLM_DEBUG_MFU_METRICS VLLM_DEEPEP_* VLLM_DEEP_GEMM_WARMUP
VLLM_DISABLED_KERNELS VLLM_DISABLE_COMPILE_CACHE VLLM_DISABLE_DSV4_* VLLM_DISABLE_LOG_LOGO
VLLM_DISABLE_PYNCCL VLLM_DISABLE_SCCACHE VLLM_DISABLE_SHARED_EXPERTS_STREAM
VLLM_DISTRIBUTED_USE_SPLIT_GROUP VLLM_DOCKER_BUILD_CONTEXT VLLM_DP_MASTER_IP VLLM_DP_MASTER_PORT
VLLM_DP_RANK VLLM_DP_RANK_LOCAL VLLM_DP_SIZE VLLM_EC_SIDE_CHANNEL_HOST VLLM_EC_SIDE_CHANNEL_PORT
VLLM_ELASTIC_EP_DRAIN_REQUESTS VLLM_ENABLE_COHERE_API VLLM_ENABLE_CUDAGRAPH_GC
VLLM_ENABLE_CUDA_COMPATIBILITY VLLM_ENABLE_FLA_PACKED_RECURRENT_DECODE VLLM_ENABLE_GEMM_RS
VLLM_ENABLE_HPC_OPS VLLM_ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING
VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE VLLM_ENABLE_PREGRAD_PASSES VLLM_ENABLE_RESPONSES_API_STORE
VLLM_ENABLE_STARTUP_PLAN VLLM_ENFORCE_STRICT_TOOL_CALLING VLLM_ENGINE_ITERATION_TIMEOUT_S
VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS VLLM_FASTSAFETENSORS_QUEUE_SIZE
VLLM_FLASHINFER_ALLREDUCE_BACKEND VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE
VLLM_FLOAT32_MATMUL_PRECISION VLLM_FORCE_AOT_LOAD VLLM_GC_DEBUG VLLM_GDN_DECODE_KERNEL
VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS
VLLM_GPU_NIC_PCIE_MAPPING VLLM_GPU_SYNC_CHECK VLLM_HOST_IP VLLM_HUMMING_* VLLM_IMAGE_FETCH_TIMEOUT
VLLM_IMAGE_TAG VLLM_KIMI_K3_* VLLM_KV_CACHE_LAYOUT VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES
VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS VLLM_LOG_BATCHSIZE_INTERVAL VLLM_LOG_MODEL_INSPECTION
VLLM_LOOPBACK_IP VLLM_LORA_DISABLE_PDL VLLM_LORA_ENABLE_DUAL_STREAM VLLM_LORA_RESOLVER_CACHE_DIR
VLLM_LORA_RESOLVER_HF_REPO_LIST VLLM_MAIN_CUDA_VERSION VLLM_MARLIN_INPUT_DTYPE
VLLM_MARLIN_USE_ATOMIC_ADD VLLM_MAX_AUDIO_CLIP_FILESIZE_MB VLLM_MAX_AUDIO_DECODE_BYTES
VLLM_MAX_AUDIO_DECODE_DURATION_S VLLM_MAX_AUDIO_PREPROCESS_WORKERS VLLM_MAX_EMBED_DECODE_BYTES
VLLM_MAX_IMAGE_PIXELS VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB VLLM_MEDIA_CACHE
VLLM_MEDIA_CACHE_MAX_SIZE_MB VLLM_MEDIA_CACHE_TTL_HOURS VLLM_MEDIA_CONNECTOR
VLLM_MEDIA_FETCH_MAX_RETRIES VLLM_MEDIA_LOADING_THREAD_COUNT VLLM_MEDIA_URL_ALLOW_REDIRECTS
VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS VLLM_MLA_DISABLE VLLM_MODEL_REDIRECT_PATH
VLLM_MOE_ROUTING_SIMULATION_STRATEGY VLLM_MOE_SKIP_PADDING VLLM_MOE_USE_DEEP_GEMM VLLM_MOONCAKE_*
VLLM_MQ_MAX_CHUNK_BYTES_MB VLLM_MSGPACK_ZERO_COPY_THRESHOLD VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD
VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD VLLM_NCCL_INCLUDE_PATH VLLM_NCCL_SO_PATH
VLLM_NIC_SELECTION_VARS VLLM_NIXL_SIDE_CHANNEL_HOST VLLM_NIXL_SIDE_CHANNEL_PORT
VLLM_NVTX_SCOPES_FOR_PROFILING VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME VLLM_P2P_HANDSHAKE_TIMEOUT_S
VLLM_P2P_IDLE_TIMEOUT_S VLLM_P2P_MAX_PEERS VLLM_P2P_SIDE_CHANNEL_HOST VLLM_P2P_SIDE_CHANNEL_PORT
VLLM_PATTERN_MATCH_DEBUG VLLM_PORT VLLM_PP_LAYER_PARTITION VLLM_PRECOMPILED_WHEEL_LOCATION
VLLM_RAISE_ON_LOGIT_NANS VLLM_RANDOMIZE_DP_DUMMY_INPUTS VLLM_RAY_*
VLLM_REGEX_COMPILATION_TIMEOUT_S VLLM_REPLICATE_EMBED VLLM_RINGBUFFER_WARNING_INTERVAL VLLM_ROCM_*
VLLM_RPC_TIMEOUT VLLM_RUST_FRONTEND_PATH VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD
VLLM_SKIP_P2P_CHECK VLLM_SKIP_PRECOMPILED_VERSION_SUFFIX VLLM_SPARSE_INDEXER_MAX_LOGITS_MB
VLLM_SSM_CONV_STATE_LAYOUT VLLM_SYSTEM_START_DATE VLLM_TOOL_JSON_ERROR_AUTOMATIC_RETRY
VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS VLLM_TPU_USING_PATHWAYS VLLM_TRACE_FUNCTION
VLLM_TRITON_FORCE_FIRST_CONFIG VLLM_TRITON_JIT_WARMUP_NUM_THREADS VLLM_TRITON_USE_TD
VLLM_TUNED_CONFIG_FOLDER VLLM_USAGE_SOURCE VLLM_USAGE_STATS_SERVER VLLM_USE_AOT_COMPILE
VLLM_USE_BREAKABLE_CUDAGRAPH VLLM_USE_BYTECODE_HOOK VLLM_USE_DEEP_GEMM VLLM_USE_DEEP_GEMM_E8M0
VLLM_USE_DEEP_GEMM_TMA_ALIGNED_SCALES VLLM_USE_DIRECT_DCP_* VLLM_USE_FASTOKENS
VLLM_USE_FLASHINFER_MOE_* VLLM_USE_FLASHINFER_SAMPLER VLLM_USE_FUSED_MOE_GROUPED_TOPK
VLLM_USE_HW_AGNOSTIC VLLM_USE_MODELSCOPE VLLM_USE_NCCL_SYMM_MEM VLLM_USE_OINK_OPS
VLLM_USE_PRECOMPILED VLLM_USE_RAY_* VLLM_USE_RUST_BENCH VLLM_USE_RUST_FRONTEND
VLLM_USE_SIMPLE_KV_OFFLOAD VLLM_USE_SPINLOOP_EXT VLLM_USE_STANDALONE_COMPILE VLLM_USE_TRITON_AWQ
VLLM_USE_V2_MODEL_RUNNER VLLM_V1_USE_OUTLINES_CACHE VLLM_VIDEO_FETCH_TIMEOUT
VLLM_VIDEO_LOADER_BACKEND VLLM_WEIGHT_OFFLOADING_DISABLE_* VLLM_WORKER_MULTIPROC_METHOD
VLLM_WSL2_ENABLE_PIN_MEMORY VLLM_XGRAMMAR_CACHE_MB VLLM_XLA_* VLLM_XPU_*
VLLM_ZENTORCH_WEIGHT_PREPACK
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
    if "://" in environ.get("VLLM_PORT", ""):
        raise ConfigError(
            f"VLLM_PORT is {environ['VLLM_PORT']!r}; it must be a port number. Kubernetes sets "
            "this variable for a service named 'vllm': rename the service.")
    warnings = [f"{row.name}={environ[row.name]} has no effect: {row.meaning}."
                for row in VARIABLES.values() if row.name in _FIXED and row.value != row.default]
    others = [name for name in sorted(set(environ) - set(VARIABLES)) if name.startswith("VLLM_")]
    unused = [name for name in others if _is_unused(name)]
    unknown = [_unknown(name) for name in others if name not in unused]
    if unknown and fail_on_unknown:
        raise ConfigError(" ".join(unknown))
    if unused:
        verb, it = ("is", "it") if len(unused) == 1 else ("are", "them")
        warnings.append(f"{', '.join(unused)} {verb} set, but this build does not use {it}.")
    return warnings + unknown


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, VARIABLES, n=1)
    return f"{name} is not a known variable" + (f"; did you mean {close[0]}?" if close else ".")
