"""Beam search over any engine: a state machine that says which sequences need their next token.

Every step asks for the 2 * beam_width most probable tokens after each beam, so that beam_width
continue even if half of the candidates end. Scores are cumulative log-probabilities divided by
(number of generated tokens without the end token) ** length_penalty.
"""

from collections.abc import Collection, Sequence

from vllm.exceptions import VLLMValidationError
from vllm.outputs import BeamSearchSequence, Logprob
from vllm.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams


class BeamSearch:
    """One prompt. While `active`: run each of them by `step_params`, then `advance`."""

    def __init__(
        self, prompt_token_ids: list[int], params: BeamSearchParams, eos_token_ids: Collection[int]
    ) -> None:
        if params.temperature not in (0.0, 1.0):
            raise VLLMValidationError(
                f"temperature is {params.temperature}; beam search compares the model's own "
                "probabilities, so it must be 0 or 1.",
                param="temperature",
            )
        self.active = [BeamSearchSequence(list(prompt_token_ids), [])]
        self._num_prompt = len(prompt_token_ids)
        self._params = params
        self._eos = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._ended: list[BeamSearchSequence] = []
        self._num_steps = 0

    def step_params(self) -> SamplingParams:
        """How each active beam is run: one token, with its best alternatives."""
        return SamplingParams(
            temperature=0.0,
            max_tokens=1,
            logprobs=2 * self._params.beam_width,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def advance(self, candidates: Sequence[dict[int, Logprob]]) -> None:
        """Take the alternatives of each active beam, in order; choose the next beams."""
        new: list[BeamSearchSequence] = []
        for beam, options in zip(self.active, candidates, strict=True):
            for token_id, logprob in options.items():
                extended = BeamSearchSequence(
                    [*beam.tokens, token_id],
                    [*beam.logprobs, options],
                    beam.cum_logprob + logprob.logprob,
                )
                if token_id in self._eos:
                    extended.finish_reason = "stop"
                    self._ended.append(extended)
                else:
                    new.append(extended)
        new.sort(key=lambda beam: -beam.cum_logprob)
        self.active = new[: self._params.beam_width]
        self._num_steps += 1
        if self._num_steps == self._params.max_tokens:
            for beam in self.active:
                beam.finish_reason = "length"
            self._ended += self.active
            self.active = []

    def cut(self) -> None:
        """The context is full: what there is so far is the result."""
        for beam in self.active:
            beam.finish_reason = "length"
        self._ended += self.active
        self.active = []

    def result(self) -> list[BeamSearchSequence]:
        """The best sequences, best first; call it when none is active."""
        return sorted(self._ended, key=self._score, reverse=True)[: self._params.beam_width]

    def _score(self, beam: BeamSearchSequence) -> float:
        length = len(beam.tokens) - self._num_prompt - (beam.finish_reason == "stop")
        penalty: float = max(1, length) ** self._params.length_penalty
        return beam.cum_logprob / penalty
