"""An engine without a model: tokens are a function of the tokens before them, and of nothing else.

`next_token` is what a model with this vocabulary would choose; a test computes the right answer
with `continuation`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.v1.executor.base import Executor
from vllm.v1.messages import (
    KVCacheConfig,
    KVLayerSpec,
    ModelRunnerOutput,
    SchedulerOutput,
    TokenLogprobs,
)

EOS = 256
VOCAB = 260
CRASH_TOKEN = 258
"""A prompt that holds it makes the step fail."""
POISON_TOKEN = 259
"""A prompt that holds it ends with an error of its own."""


def next_token(token_ids: Sequence[int]) -> int:
    """A printable ASCII byte."""
    return 32 + (sum(token_ids) * 31 + len(token_ids) * 7) % 95


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """The `count` tokens that follow `prompt`."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass
class _Sequence:
    tokens: list[int]
    num_prompt: int
    num_computed: int
    num_logprobs: int | None
    wants_prompt: bool


class FakeExecutor(Executor):
    """Follows the scheduler as a worker does. `--seed` is how many microseconds a step takes."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self.sequences: dict[str, _Sequence] = {}

    def load_model(self) -> list[KVLayerSpec]:
        return [KVLayerSpec(1, 8)]

    def initialize_cache(self, kv_cache_config: KVCacheConfig) -> None:
        self.kv_cache_config = kv_cache_config

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        time.sleep(self.vllm_config.model_config.seed * 1e-6)
        for request_id in scheduled.finished_req_ids:
            self.sequences.pop(request_id, None)
        for new in scheduled.new_reqs:
            params = new.sampling_params
            self.sequences[new.request_id] = _Sequence(
                list(new.token_ids),
                new.num_prompt_tokens,
                new.num_computed_tokens,
                params.logprobs,
                params.prompt_logprobs is not None,
            )
        output = ModelRunnerOutput({})
        for request_id, count in scheduled.num_scheduled_tokens.items():
            self._advance(request_id, self.sequences[request_id], count, output)
        return output

    def _advance(
        self, request_id: str, sequence: _Sequence, count: int, output: ModelRunnerOutput
    ) -> None:
        prompt = sequence.tokens[: sequence.num_prompt]
        if CRASH_TOKEN in prompt:
            raise RuntimeError("the step failed")
        start = sequence.num_computed
        sequence.num_computed += count
        if sequence.wants_prompt:
            end = min(sequence.num_computed, sequence.num_prompt - 1)
            output.prompt_logprobs[request_id] = [
                TokenLogprobs([sequence.tokens[i + 1]], [-float(i)], [1]) for i in range(start, end)
            ]
        if sequence.num_computed < len(sequence.tokens):
            return
        if POISON_TOKEN in prompt:
            output.errors[request_id] = "poison"
        token = next_token(sequence.tokens)
        sequence.tokens.append(token)
        output.sampled_token_ids[request_id] = [token]
        if sequence.num_logprobs is not None:
            others = [(token + i) % VOCAB for i in range(sequence.num_logprobs)]
            ranks = [1, *range(1, len(others) + 1)]
            values = [-0.5, *[-0.5 - i for i in range(len(others))]]
            output.logprobs[request_id] = [TokenLogprobs([token, *others], values, ranks)]

    def call(self, method: str, *args: object) -> object:
        return "fake" if method == "describe" else None

    def shutdown(self) -> None:
        self.sequences.clear()


def write_tokenizer(folder: Path) -> Path:
    """A byte-level tokenizer whose token i is byte i, with EOS and three more special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    to_char = dict(zip(range(256), _byte_alphabet(), strict=True))
    assert set(to_char.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={to_char[i]: i for i in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<eos>", "<start>", "<crash>", "<poison>"]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def fake_config(folder: Path, **overrides: Any) -> Any:
    """What the engine reads of a VllmConfig; keyword arguments replace single fields."""
    given = lambda **fields: SimpleNamespace(  # noqa: E731
        **{key: overrides.pop(key, value) for key, value in fields.items()}
    )
    config = SimpleNamespace(
        model_config=given(
            model=str(folder),
            path=str(folder),
            tokenizer_path=str(folder),
            tokenizer_mode="auto",
            skip_tokenizer_init=False,
            max_model_len=512,
            max_logprobs=20,
            logprobs_mode="raw_logprobs",
            logits_processors=None,
            generation_config="auto",
            override_generation_config={},
            seed=0,
            arch=SimpleNamespace(vocab_size=VOCAB, eos_token_ids=(EOS,)),
        ),
        cache_config=given(
            block_size=16,
            num_gpu_blocks=256,
            enable_prefix_caching=True,
            prefix_caching_hash_algo="sha256",
            kv_cache_dtype="float32",
        ),
        scheduler_config=given(
            max_num_batched_tokens=128,
            max_num_scheduled_tokens=None,
            max_num_seqs=16,
            max_num_active_seqs=None,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=0,
            scheduling_policy="fcfs",
            watermark=0.0,
            stream_interval=1,
            max_num_queued_reqs=None,
            max_num_queued_tokens=None,
        ),
        parallel_config=given(
            distributed_executor_backend="tests.v1.engine.fake:FakeExecutor", worker_cls="auto"
        ),
    )
    assert not overrides, f"unknown fields: {sorted(overrides)}"
    return config


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(i) if i in printable else chr(next(others)) for i in range(256)]
