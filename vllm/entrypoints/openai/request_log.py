"""What the log says about single requests, if the operator asks for it.

Ids and parameters at INFO; prompts at DEBUG only; outputs only with --enable-log-outputs.
"""

from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.logger import init_logger
from vllm.outputs import CompletionOutput
from vllm.sampling_params import SamplingParams

logger = init_logger(__name__)


class RequestLog:
    """Writes nothing at all by default."""

    def __init__(self, options: FrontendArgs) -> None:
        self._logs_requests = options.enable_log_requests and not options.disable_log_requests
        self._logs_outputs = self._logs_requests and options.enable_log_outputs
        self.logs_deltas = options.enable_log_deltas
        self._max_len = options.max_log_len

    def received(self, request_id: str, params: SamplingParams, prompt: object) -> None:
        """A request was accepted; `prompt` is its text or its token ids."""
        if not self._logs_requests:
            return
        logger.info("Received request %s: %s", request_id, params)
        logger.debug("Prompt of %s: %r", request_id, self.cut(prompt))

    def generated(self, request_id: str, output: CompletionOutput) -> None:
        """A choice is complete."""
        if self._logs_outputs:
            self.write(request_id, output.index, output.text, output.finish_reason)

    def stream(self, request_id: str) -> "StreamLog | None":
        """Takes the parts of a stream; None if nobody wants them."""
        return StreamLog(self, request_id) if self._logs_outputs else None

    def write(self, request_id: str, index: int, text: str, reason: str | None) -> None:
        """The line of a complete choice."""
        logger.info("Output %d of %s (%s): %r", index, request_id, reason, self.cut(text))

    def cut(self, value: object) -> object:
        """At most --max-log-len characters or token ids."""
        if self._max_len is None or not isinstance(value, (str, list)):
            return value
        return value[: self._max_len]


class StreamLog:
    """Joins the parts of a stream's choices, and writes each part if that is wanted too."""

    def __init__(self, log: RequestLog, request_id: str) -> None:
        self._log = log
        self._request_id = request_id
        self._texts: dict[int, str] = {}

    def add(self, output: CompletionOutput) -> None:
        """One part of a choice."""
        index = output.index
        self._texts[index] = self._texts.get(index, "") + output.text
        if self._log.logs_deltas and output.text:
            shown = self._log.cut(output.text)
            logger.info("Delta %d of %s: %r", index, self._request_id, shown)
        if output.finish_reason is not None:
            self._log.write(self._request_id, index, self._texts[index], output.finish_reason)
