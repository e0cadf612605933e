"""Which model, in which precision, with which limits."""

from dataclasses import dataclass, field
from typing import Any

from vllm.config.flags import BOOL_OR_STR, FLOAT, HUMAN_INT, JSON, STR, STR_LIST, flag, later
from vllm.transformers_utils.arch import ModelArch

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")


@dataclass(frozen=True)
class ModelConfig:
    """The model and how requests may use it."""

    model: str | None = flag(
        None, "folder, .gguf file, hub id or name of the embedded model", kind=STR)
    runner: str = flag("auto", "what the model is used for", choices=("auto", "generate"),
                       feature="another use than generating text", missing=("pooling", "draft"))
    convert: str = later("auto", "adapting a generative model to pooling",
                         choices=("auto", "none", "embed", "classify"))
    task: str | None = flag(
        None, "older form of --runner", kind=STR, choices=("auto", "generate"),
        feature="another task than generating text", note="an older form, use --runner",
        missing=("embed", "classify", "score", "reward", "transcription"))
    tokenizer: str | None = flag(None, "folder or hub id of the tokenizer; default: the model",
                                 kind=STR)
    tokenizer_mode: str = flag(
        "auto", "how the tokenizer is read", choices=("auto", "hf"),
        feature="this kind of tokenizer",
        missing=("slow", "mistral", "deepseek_v32", "deepseek_v4", "inkling", "kimi_k3", "cohere"))
    revision: str | None = flag(None, "branch, tag or commit of the model on the hub", kind=STR)
    tokenizer_revision: str | None = flag(
        None, "branch, tag or commit of the tokenizer on the hub", kind=STR)
    code_revision: str | None = later(None, "code from the model's repository", kind=STR)
    trust_remote_code: bool = flag(
        False, "allow code of the model's repository; none is ever run",
        note="no code of a repository is run; the models of this build need none")
    dtype: str = flag("auto", "precision; auto is the checkpoint's own", choices=DTYPES)
    seed: int = flag(
        0, "seed of requests without one with the LLM class; a server draws one for each")
    hf_config_path: str | None = flag(None, "folder with the config.json to use", kind=STR)
    config_format: str = flag("auto", "format of the model's config",
                              choices=("auto", "hf", "gguf"), feature="this kind of config",
                              missing=("mistral",))
    hf_token: bool | str | None = flag(
        None, "token of the hub; without a value, the stored one", kind=BOOL_OR_STR)
    hf_overrides: dict[str, Any] = flag({}, "keys merged into the model's config")
    model_impl: str = flag("auto", "implementation of the model", choices=("auto", "vllm"),
                           feature="this implementation",
                           missing=("transformers", "terratorch"))
    model_class_overrides: dict[str, Any] = later({}, "classes for architectures")
    max_model_len: int | str | None = flag(
        None, "longest prompt + output; auto or -1: the longest that fits", kind=HUMAN_INT)
    served_model_name: list[str] | None = flag(
        None, "names that requests may give; the first is shown", kind=STR_LIST)
    generation_config: str = flag(
        "auto", "folder of generation_config.json; auto: the model's; vllm: none")
    override_generation_config: dict[str, Any] = flag({}, "keys merged over the generation config")
    skip_tokenizer_init: bool = flag(False, "token ids in and out only")
    enable_prompt_embeds: bool = later(False, "prompts as embeddings")
    allowed_local_media_path: str = later("", "media input")
    allowed_media_domains: list[str] | None = later(None, "media input", kind=STR_LIST)
    max_logprobs: int = flag(20, "most logprobs per token that a request may ask for; -1: all")
    logprobs_mode: str = flag("raw_logprobs", "what logprobs show", choices=(
        "raw_logits", "raw_logprobs", "processed_logits", "processed_logprobs"))
    logits_processors: list[str] | None = flag(
        None, "classes of custom logits processors, as module:Class", kind=STR_LIST)
    io_processor_plugin: str | None = later(None, "IO processor plugins", kind=STR)
    pooler_config: dict[str, Any] | None = later(None, "pooling models", kind=JSON)
    disable_sliding_window: bool = later(False, "capping the context to the window")
    enable_sleep_mode: bool = later(False, "sleep mode")
    sleep_mode_offload_cudagraph: bool = later(False, "sleep mode")
    sleep_preserve_parameter_names: list[str] | None = later(None, "sleep mode", kind=STR_LIST)
    enable_cumem_allocator: bool = later(False, "sleep mode")
    enable_nccl_comm_suspend: bool = later(False, "sleep mode")
    renderer_num_workers: int = flag(2, "threads for templates and tokenizing")
    enable_return_routed_experts: bool = later(False, "routed experts in outputs")
    return_sampling_mask: bool = later(False, "sampling masks in outputs")
    enable_trace_replay: bool = later(False, "trace replay")
    use_fp64_gumbel: bool = later(False, "Gumbel sampling")
    quantization: str | None = flag(
        None, "must name the checkpoint's own format (gguf); others are not supported yet",
        kind=STR, short=("-q",))
    quantization_config: dict[str, Any] | None = later(None, "online quantization", kind=JSON)
    allow_deprecated_quantization: bool = later(False, "deprecated quantization")
    enforce_eager: bool = flag(False, "run op by op from Python instead of one native program")

    # Resolved: filled by EngineArgs.create_engine_config.
    path: str = ""
    tokenizer_path: str = ""
    arch: ModelArch | None = None
    hf_config: dict[str, Any] = field(default_factory=dict)
    weights_bytes: int = 0


@dataclass(frozen=True)
class LoadConfig:
    """Where the weights come from."""

    load_format: str = flag(
        "auto", "format of the weights", choices=("auto", "hf", "safetensors", "gguf", "dummy"),
        feature="this kind of weights", missing=(
            "pt", "npcache", "tensorizer", "sharded_state", "mistral", "runai_streamer",
            "runai_streamer_sharded", "fastsafetensors", "instanttensor", "ipc_cache",
            "modelexpress", "bitsandbytes"))
    download_dir: str | None = flag(None, "folder for downloads; default: the hub's cache",
                                    kind=STR)
    safetensors_load_strategy: str | None = flag(
        None, "how safetensors files are read; lazy: they are mapped", kind=STR,
        choices=("lazy",), feature="reading files in another way than mapping them",
        missing=("eager", "prefetch", "torchao"))
    model_loader_extra_config: dict[str, Any] = later({}, "loader options")
    ignore_patterns: list[str] = flag(
        ["original/**/*"], "files of a hub repository that are not downloaded", kind=STR_LIST)
    use_tqdm_on_load: bool = flag(True, "progress bar of downloads")
    pt_load_map_location: str = later("cpu", "torch checkpoints")


@dataclass(frozen=True)
class MultiModalConfig:
    """Images, audio and video."""

    limit_mm_per_prompt: dict[str, Any] = later({}, "media input")
    language_model_only: bool = flag(False, "text alone; always so in this build")
    enable_mm_embeds: bool = later(False, "media input")
    media_io_kwargs: dict[str, Any] = later({}, "media input")
    mm_processor_kwargs: dict[str, Any] | None = later(None, "media input", kind=JSON)
    mm_processor_cache_gb: float = later(4.0, "media input", kind=FLOAT)
    mm_processor_cache_type: str = later("lru", "media input", choices=("lru", "shm"))
    mm_shm_cache_max_object_size_mb: int = later(128, "media input")
    mm_hasher_algorithm: str = later("blake3", "media input",
                                     choices=("blake3", "sha256", "sha512"))
    mm_encoder_tp_mode: str = later("weights", "media input", choices=("weights", "data"))
    mm_encoder_attn_backend: str | None = later(None, "media input", kind=STR)
    mm_encoder_only: bool = later(False, "media input")
    mm_encoder_attn_dtype: str | None = later(None, "media input", kind=STR)
    mm_tensor_ipc: str = later("direct_rpc", "media input", choices=("direct_rpc", "torch_shm"))
    interleave_mm_strings: bool = later(False, "media input")
    skip_mm_profiling: bool = later(False, "media input")
    video_pruning_rate: float | None = later(None, "media input", kind=FLOAT)
    video_pruning_method: str | None = later(None, "media input", kind=STR)


