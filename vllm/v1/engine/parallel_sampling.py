"""n > 1: one request becomes n engine requests that share the prompt's cached blocks."""

import msgspec

from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.messages import EngineCoreRequest

_SEED_MASK = (1 << 64) - 1


def fan_out(request: EngineCoreRequest, child_ids: list[str]) -> list[EngineCoreRequest]:
    """One engine request per id; child i samples with seed + i, so it does not depend on n.

    Texts stay here: stop strings are looked for in the text, and of bad words the engine needs the
    token ids only. Megabytes of them would cross n times.
    """
    params = request.sampling_params
    if len(child_ids) == 1 and not params.stop and not params.bad_words:
        return [msgspec.structs.replace(request, request_id=child_ids[0])]
    params = params.clone()
    params.n, params.stop, params.bad_words = 1, [], []
    return [
        msgspec.structs.replace(
            request,
            request_id=child_id,
            sampling_params=params,
            seed=(request.seed + index) & _SEED_MASK,
        )
        for index, child_id in enumerate(child_ids)
    ]


class ParentRequest:
    """What the n sequences of one user request have in common; `child_ids` still run."""

    def __init__(self, request_id: str, child_ids: list[str], kind: RequestOutputKind) -> None:
        self.request_id = request_id
        self.n = len(child_ids)
        self.child_ids = set(child_ids)
        self.max_generation_tokens = 0
        self._kind = kind
        self._outputs: dict[int, CompletionOutput] = {}

    @property
    def finished(self) -> bool:
        """True once every sequence has ended."""
        return not self.child_ids

    def gather(self, output: CompletionOutput) -> list[CompletionOutput]:
        """The outputs to show now that one sequence has `output`; empty if it is too early."""
        if self._kind is RequestOutputKind.DELTA:
            return [output]
        self._outputs[output.index] = output
        if self._kind is RequestOutputKind.FINAL_ONLY and not self.finished:
            return []
        return [self._outputs[index] for index in sorted(self._outputs)]
