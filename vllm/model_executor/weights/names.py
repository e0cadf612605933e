"""Checkpoint tensor names -> the names that graphs use (those of Transformers' causal models).

Decides what a tensor is called and which ones may be ignored in silence. Invariant: two tensors
never end up with one name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vllm.exceptions import ModelFileError
from vllm.transformers_utils.files import shown

# Text models nested in multimodal ones, and bare models saved without their head.
_RENAMES = (
    (r"^(?:model\.)?language_model\.model\.", "model."),
    (r"^(?:model\.)?language_model\.lm_head\.", "lm_head."),
    (r"^model\.language_model\.", "model."),
    (r"^(?=layers\.\d|embed_tokens\.|norm\.)", "model."),
)

# Buffers that old files carry, and the other towers of multimodal checkpoints.
_IGNORED = re.compile(
    r"rotary_emb\.(?:inv_freq|cos_cached|sin_cached)$|\.masked_bias$|"
    r"^(?:model\.)?(?:vision_tower|vision_model|multi_modal_projector|visual|audio_tower)\."
)


def canonical_names(
    names: Iterable[str], renames: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """{our name: checkpoint name}, in the order of the checkpoint."""
    rules = [(re.compile(pattern), replacement) for pattern, replacement in (*renames, *_RENAMES)]
    result: dict[str, str] = {}
    for name in names:
        ours = _rename(name, rules)
        if ours in result:
            raise ModelFileError(
                f"tensors {shown(name)} and {shown(result[ours])} are the same parameter"
            )
        result[ours] = name
    return result


def is_ignorable(name: str) -> bool:
    """Whether a tensor that nobody used needs no mention."""
    return _IGNORED.search(name) is not None


def _rename(name: str, rules: list[tuple[re.Pattern[str], str]]) -> str:
    for pattern, replacement in rules:
        renamed, count = pattern.subn(replacement, name, count=1)
        if count:
            return renamed
    return name
