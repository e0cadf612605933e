"""Logprobs as the engine sends them -> as users get them, with the text of each token."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vllm.outputs import Logprob, PromptLogprobs, SampleLogprobs
from vllm.v1.engine.detokenizer import SEED_TOKENS, decode_piece, open_character
from vllm.v1.messages import TokenLogprobs

if TYPE_CHECKING:
    from vllm.transformers_utils.tokenizer import Tokenizer


class LogprobsCollector:
    """Logprobs of one sequence; `sample` and `prompt` are None if nobody asked."""

    def __init__(
        self,
        tokenizer: "Tokenizer | None",
        prompt_token_ids: list[int],
        wants_sample: bool,
        wants_prompt: bool,
    ) -> None:
        self.sample: SampleLogprobs | None = [] if wants_sample else None
        self.prompt: PromptLogprobs | None = [None] if wants_prompt else None
        self.cumulative = 0.0
        self._tokenizer = tokenizer
        self._prompt_token_ids = prompt_token_ids

    def add_sample(self, entry: TokenLogprobs, open_bytes: bytes) -> None:
        """Add one output position; `open_bytes` are those of an unfinished character before it."""
        if self.sample is not None:
            self.cumulative += entry.logprobs[0]
            self.sample.append(self._to_dict(entry, open_bytes))

    def add_prompt(self, entries: Iterable[TokenLogprobs]) -> None:
        """Add the next prompt positions; those of one chunk come together."""
        if self.prompt is None:
            return
        for entry in entries:
            if len(self.prompt) >= len(self._prompt_token_ids):
                return  # sent again after a restart
            self.prompt.append(self._to_dict(entry, self._open_bytes_before(len(self.prompt))))

    def restart_prompt(self) -> None:
        """The engine computes the prompt again from its first position."""
        if self.prompt is not None and len(self.prompt) < len(self._prompt_token_ids):
            self.prompt = [None]

    def _open_bytes_before(self, position: int) -> bytes:
        if self._tokenizer is None:
            return b""
        before = self._prompt_token_ids[max(0, position - SEED_TOKENS) : position]
        return open_character(b"".join(map(self._tokenizer.token_bytes, before)))

    def _to_dict(self, entry: TokenLogprobs, open_bytes: bytes) -> dict[int, Logprob]:
        """Token id -> Logprob; the chosen token is first, and stays so if it comes up again."""
        result: dict[int, Logprob] = {}
        rows = zip(entry.token_ids, entry.logprobs, entry.ranks, strict=True)
        for token_id, logprob, rank in rows:
            if token_id not in result:
                text = None
                if self._tokenizer is not None:
                    text = decode_piece(self._tokenizer.token_bytes(token_id), open_bytes)
                result[token_id] = Logprob(logprob, rank, text)
        return result
