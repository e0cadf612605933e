"""A text that is far too long is refused at the cost of the tokens that fit."""

import pytest

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.transformers_utils.tokenizer import get_tokenizer
from vllm.v1.engine.input_processor import InputProcessor


def test_a_text_far_above_the_context_is_never_encoded_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = EngineArgs(max_model_len=512).create_engine_config()
    tokenizer = get_tokenizer(config.model_config.tokenizer_path)
    monkeypatch.setattr(tokenizer, "encode", None)
    inputs = InputProcessor(config, lambda: tokenizer, lambda: 0, [2])
    with pytest.raises(VLLMValidationError, match="512") as info:
        inputs.process("r", "7 " * 60_000, SamplingParams())
    assert info.value.code == "context_length_exceeded"
