"""The error tree. A message says what was received, what is allowed and how to fix it.

VLLMError
|-- ConfigError                    start-up: a flag, variable or combination is wrong
|   `-- ModelFileError             a model file is damaged, hostile or not supported
|-- RequestError                   one request is refused; `status` is its HTTP status
|   |-- VLLMValidationError        400
|   |-- VLLMNotFoundError          404
|   |-- VLLMUnprocessableEntityError 422
|   `-- QueueOverflowError         503, the admission limit is reached
|       `-- MaxQueuedTokensError
|-- EngineGenerateError            500, one running request failed
`-- EngineDeadError                the engine process is gone
"""


class VLLMError(Exception):
    """Root of every error that this package raises on purpose."""


class ConfigError(VLLMError, ValueError):
    """The configuration can't be used; the process exits before serving."""


class ModelFileError(ConfigError):
    """A model file is truncated, contradicts itself or is not supported."""


class RequestError(VLLMError, ValueError):
    """One request is refused. `param` names the field, `code` is a stable word for programs."""

    status = 400

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class VLLMValidationError(RequestError):
    """A field has a value that is not allowed."""


class VLLMNotFoundError(RequestError):
    """The named model, adapter or object does not exist."""

    status = 404


class VLLMUnprocessableEntityError(RequestError):
    """The request is well formed but what it points to can't be used."""

    status = 422


class QueueOverflowError(RequestError):
    """Too many requests are waiting; try again later."""

    status = 503


class MaxQueuedTokensError(QueueOverflowError):
    """Too many prompt tokens are waiting; try again later."""


class EngineGenerateError(VLLMError):
    """A running request failed; no other request is affected."""


class EngineDeadError(VLLMError):
    """The engine process ended; nothing can be generated until it is back."""
