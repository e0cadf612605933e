"""One way to log: `logger = init_logger(__name__)`.

A line is `LEVEL MM-DD HH:MM:SS [file.py:line] message`, after `(Process pid=N)` where several
processes write and after VLLM_LOGGING_PREFIX. Prompts and answers are never logged above DEBUG.
"""

import json
import logging
import os
import sys
from collections.abc import Hashable
from functools import lru_cache
from typing import TYPE_CHECKING

from vllm import envs
from vllm.exceptions import ConfigError

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # takes no type argument before Python 3.11

_ROOT = "vllm"
_COLORS = {"DEBUG": 37, "INFO": 32, "WARNING": 33, "ERROR": 31, "CRITICAL": 35}
_process_name: str | None = None


def init_logger(name: str) -> "Logger":
    """The logger of a module; the first call configures logging."""
    _configure()
    return Logger(logging.getLogger(name))


def set_process_name(name: str) -> None:
    """Put `(name pid=N)` before every line of this process."""
    global _process_name
    _process_name = f"({name} pid={os.getpid()}) "


class Logger(_Adapter):
    """A logger that can also say a thing only once."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})

    def warning_once(self, message: str, *args: Hashable) -> None:
        """Warn, but only the first time in this process."""
        _log_once(self.logger.name, logging.WARNING, message, args)

    def info_once(self, message: str, *args: Hashable) -> None:
        """Inform, but only the first time in this process."""
        _log_once(self.logger.name, logging.INFO, message, args)

    def debug_once(self, message: str, *args: Hashable) -> None:
        """For debugging, but only the first time in this process."""
        _log_once(self.logger.name, logging.DEBUG, message, args)


@lru_cache(maxsize=1024)
def _log_once(name: str, level: int, message: str, args: tuple[Hashable, ...]) -> None:
    logging.getLogger(name).log(level, message, *args, stacklevel=3)


class LineFormatter(logging.Formatter):
    """The line described in the module's docstring; each line of a message gets the prefix."""

    def __init__(self, color: bool) -> None:
        super().__init__(datefmt="%m-%d %H:%M:%S")
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        """The finished text of one record."""
        level = record.levelname
        if self._color:
            level = f"\033[{_COLORS.get(level, 0)}m{level}\033[0m"
        head = (f"{envs.VLLM_LOGGING_PREFIX}{_process_name or ''}{level} "
                f"{self.formatTime(record, self.datefmt)} [{record.filename}:{record.lineno}] ")
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return "\n".join(head + line for line in text.splitlines() or [""])


@lru_cache(maxsize=1)
def _configure() -> None:
    if not envs.VLLM_CONFIGURE_LOGGING:
        if envs.VLLM_LOGGING_CONFIG_PATH:
            raise ConfigError("VLLM_LOGGING_CONFIG_PATH is set while VLLM_CONFIGURE_LOGGING is 0; "
                              "unset one of them.")
        return
    if envs.VLLM_LOGGING_CONFIG_PATH:
        _load_config_file(envs.VLLM_LOGGING_CONFIG_PATH)
        return
    stream = sys.stdout if envs.VLLM_LOGGING_STREAM.endswith("stdout") else sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(_use_color(stream.isatty())))
    root = logging.getLogger(_ROOT)
    root.handlers[:] = [handler]
    root.setLevel(envs.VLLM_LOGGING_LEVEL)
    root.propagate = False


def _use_color(is_terminal: bool) -> bool:
    if envs.VLLM_LOGGING_COLOR in ("always", "1") or envs.FORCE_COLOR:
        return True
    return envs.VLLM_LOGGING_COLOR == "auto" and is_terminal and not envs.NO_COLOR


def _load_config_file(path: str) -> None:
    import logging.config  # with its handlers as costly as the rest of the logger together

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        logging.config.dictConfig(_parse_config(path, text))
    except (OSError, ValueError, TypeError, AttributeError, ImportError) as error:
        raise ConfigError(f"VLLM_LOGGING_CONFIG_PATH: {path} can't be used: {error}") from error


def _parse_config(path: str, text: str) -> dict[str, object]:
    if path.endswith((".yaml", ".yml")):
        import yaml

        try:
            config = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"it is not YAML: {error}") from error
    else:
        config = json.loads(text)
    if not isinstance(config, dict):
        raise ValueError("it must hold a mapping as logging.config.dictConfig takes")
    return config
