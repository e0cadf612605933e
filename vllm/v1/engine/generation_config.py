"""What the model's authors recommend: sampling defaults and end-of-sequence tokens."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_FIELDS = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}


class GenerationConfig:
    """generation_config.json of the model, or of --generation-config, under its override.

    The end-of-sequence ids of the model's own file count even if its defaults are not wanted.
    """

    def __init__(self, vllm_config: "VllmConfig") -> None:
        from vllm.transformers_utils.config import load_generation_config

        model = vllm_config.model_config
        own = load_generation_config(model.path)
        chosen = own
        if model.generation_config == "vllm":
            chosen = {}
        elif model.generation_config != "auto":
            chosen = load_generation_config(model.generation_config)
        self._values = {**chosen, **(model.override_generation_config or {})}
        in_config = () if model.arch is None else model.arch.eos_token_ids
        found = [*in_config, *(own.get("eos_token_id") or ())]
        self.eos_token_ids: list[int] = list(dict.fromkeys(found))

    def sampling_defaults(self) -> dict[str, Any]:
        """The recommended values as SamplingParams fields."""
        return {
            field: self._values[key]
            for key, field in _FIELDS.items()
            if self._values.get(key) is not None
        }
