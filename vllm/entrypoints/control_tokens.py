"""Guards nested user data against turning into control tokens once a template has joined it.

The tokenizer marks whole control tokens inside a string (`Tokenizer.guard`). Here the same is done
for all strings of a request, and for a string that *ends* in the beginning of a control token: the
next part of the message, put behind it by the template, could complete it.
"""

from typing import TYPE_CHECKING, Any

from vllm.transformers_utils.special_text import MARK

if TYPE_CHECKING:
    from vllm.transformers_utils.tokenizer import Tokenizer

CONTINUE = "\ufdd2"
"""Stands at the end of a message that is to be continued; Unicode keeps it out of texts."""


class ControlTokenGuard:
    """Marks the strings of messages, documents and template arguments."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._guard = tokenizer.guard
        tokens = tokenizer.all_special_tokens
        self._beginnings = {token[:n] for token in tokens for n in range(1, len(token))}
        self._longest = max(map(len, self._beginnings), default=0)

    def mark(self, value: Any) -> Any:
        """A copy of `value` whose strings are safe to join."""
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, dict):
            return {key: self.mark(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mark(item) for item in value]
        return value

    def _mark_text(self, text: str) -> str:
        guarded = self._guard(text.replace(CONTINUE, ""))
        # Templates often strip texts, so what counts is what stands before blanks at the end.
        body = guarded.rstrip()
        for length in range(min(self._longest, len(body)), 0, -1):
            if body[-length:] in self._beginnings:
                return body + MARK + guarded[len(body) :]
        return guarded
