"""What the log says about single requests, if the operator asks for it.

Ids and parameters at INFO; prompts at DEBUG only; outputs only with --enable-log-outputs.
"""

from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams

logger = init_logger(__name__)


class RequestLog:
    """Writes nothing at all by default."""

    def __init__(self, options: FrontendArgs) -> None:
        self._logs_requests = options.enable_log_requests and not options.disable_log_requests
        self.logs_outputs = self._logs_requests and options.enable_log_outputs
        self.logs_deltas = self.logs_outputs and options.enable_log_deltas
        self._max_len = options.max_log_len

    def received(self, request_id: str, params: SamplingParams, prompt: object) -> None:
        """A request was accepted; `prompt` is its text or its token ids."""
        if not self._logs_requests:
            return
        logger.info("Received request %s: %s", request_id, params)
        logger.debug("Prompt of %s: %r", request_id, self._cut(prompt))

    def generated(self, request_id: str, index: int, text: str, reason: str | None) -> None:
        """A choice is complete."""
        if self.logs_outputs:
            shown = self._cut(text)
            logger.info("Output %d of %s (%s): %r", index, request_id, reason, shown)

    def streamed(self, request_id: str, index: int, text: str) -> None:
        """A stream has sent a part of a choice."""
        if self.logs_deltas:
            logger.info("Delta %d of %s: %r", index, request_id, self._cut(text))

    def _cut(self, value: object) -> object:
        if self._max_len is None or not isinstance(value, (str, list)):
            return value
        return value[: self._max_len]
