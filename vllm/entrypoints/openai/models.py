"""The names this server answers to, and GET /v1/models."""

import hashlib
import time
import uuid
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.entrypoints.openai.responses import ModelCard, ModelList, ModelPermission
from vllm.exceptions import ConfigError, VLLMNotFoundError
from vllm.version import __version__

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_BUILT_IN = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


class ServedModels:
    """One model under one or more names; `defaults` are what requests leave open."""

    def __init__(self, config: "VllmConfig", defaults: dict[str, Any]) -> None:
        model = config.model_config
        context = model.max_model_len
        if not isinstance(context, int) or not model.served_model_name:
            raise ConfigError("The configuration isn't resolved: it has no name or no length.")
        self.context = context
        self.names = list(model.served_model_name)
        self.defaults = {**_BUILT_IN, **defaults}
        self._root = model.model or self.names[0]
        self._created = int(time.time())
        described = (
            f"{__version__} {model.model} {model.revision} {model.dtype} {model.quantization}"
        )
        self.config_hash = hashlib.sha256(described.encode()).hexdigest()[:8]

    def resolve(self, name: str | None) -> str:
        """The name to answer with. Raises VLLMNotFoundError."""
        if not name:
            return self.names[0]
        if name in self.names or envs.VLLM_SKIP_MODEL_NAME_VALIDATION:
            return name
        shown = name if len(name) <= 100 else name[:100] + "..."
        raise VLLMNotFoundError(f"The model `{shown}` does not exist.", param="model")

    def cards(self) -> ModelList:
        """The body of GET /v1/models."""
        return ModelList([self._card(name) for name in self.names])

    def _card(self, name: str) -> ModelCard:
        permission = ModelPermission(id=f"modelperm-{uuid.uuid4().hex}", created=self._created)
        return ModelCard(
            id=name,
            created=self._created,
            root=self._root,
            max_model_len=self.context,
            permission=[permission],
            default_sampling_params=self.defaults,
        )
