"""Brings a command line to the one form that argparse reads: long names with dashes, whole JSON.

`-O3`, `--x_y`, `--x.a.b 1`, `--x.list+=1,2` and the rows of a `--config` file all become plain
words. Values that contradict each other are reported as "Found duplicate keys"; the last one wins.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vllm.exceptions import ConfigError

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

Warn = Callable[[str], None]


def human_int(text: str) -> int:
    """`1k` = 1000, `1K` = 1024, `25.6k` = 25600; k m g t are decimal, K M G T binary."""
    number, suffix = (text[:-1], text[-1]) if text[-1:].isalpha() else (text, "")
    if suffix in _BINARY:
        if not number.lstrip("-").isdigit():
            raise argparse.ArgumentTypeError(
                f"{text!r}: a fraction takes a small suffix; did you mean {text.lower()}?")
        return int(number) * _BINARY[suffix]
    try:
        value = float(number) * _DECIMAL[suffix] if suffix else int(number)
        if value == int(value):
            return int(value)
    except (KeyError, ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a whole number such as 4096, 4k (4000) or 4K (4096)")


def one_form(arg: str) -> list[str]:
    """Underscores to dashes in the name (not after the first dot), and -O3 -> its long name."""
    if arg.startswith("-O") and (arg[2:].lstrip("=").isdigit() or arg == "-O"):
        return ["--optimization-level", *([arg[2:].lstrip("=")] if arg != "-O" else [])]
    if not arg.startswith("--"):
        return [arg]
    name, equals, value = arg.partition("=")
    root, dot, path = name.partition(".")
    return [root.replace("_", "-") + dot + path + equals + value]


# ---- the YAML file ---------------------------------------------------------------------------


def take_config_file(args: list[str]) -> tuple[list[str], str | None]:
    """(the arguments without `--config FILE`, the file)."""
    rest, files = [], []
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if name != "--config":
            rest.append(word)
            continue
        found = value if equals else next(words, None)
        if not found:
            raise ConfigError("--config needs a YAML file")
        files.append(found)
    if len(files) > 1:
        raise ConfigError("--config was given twice; one file is allowed")
    return rest, files[0] if files else None


def read_config_file(path: str, has_option: Callable[[str], bool]) -> dict[str, list[str]]:
    """Flag name -> its words, for each row of the file."""
    import yaml

    if not path.endswith((".yaml", ".yml")):
        raise ConfigError(f"--config {path}: the file's name must end in .yaml or .yml")
    try:
        with open(path, encoding="utf-8") as file:
            rows = yaml.safe_load(file) or {}
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path} can't be read: {_one_line(error)}") from error
    if not isinstance(rows, dict):
        raise ConfigError(f"--config {path} must hold a mapping of flag names to values")
    words: dict[str, list[str]] = {}
    for key, value in rows.items():
        name = str(key).replace("_", "-")
        words[name] = _file_words(name, value, has_option)
    return words


def _file_words(name: str, value: Any, has_option: Callable[[str], bool]) -> list[str]:
    option = "--model" if name == "model-tag" else f"--{name}"
    if value is True:
        return [option]
    if value is False:
        return [f"--no-{name}"] if has_option(f"--no-{name}") else []
    if isinstance(value, list) and not has_option(f"{option}."):
        return [option, *map(str, value)]
    if isinstance(value, (dict, list)):
        return [f"{option}={json.dumps(value)}"]
    return [f"{option}={value}"]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


# ---- dotted JSON -----------------------------------------------------------------------------


class JsonFolder:
    """Gathers `--x.a.b 1` and `--x '{...}'` into one JSON value per flag."""

    def __init__(self, options: Mapping[str, str], warn: Warn) -> None:
        """options: every spelling of a JSON flag -> its long name."""
        self._options = options
        self._warn = warn
        self._values: dict[str, dict[str, Any]] = {}

    def fold(self, args: list[str]) -> list[str]:
        """The other arguments, then one `--x JSON` per flag that had parts."""
        rest: list[str] = []
        words = iter(args)
        for word in words:
            name, equals, value = word.partition("=")
            root, dot, path = name.partition(".")
            option = self._options.get(root) if root.startswith("-") else None
            if option is None:
                rest.append(word)
                continue
            if not equals:
                value = next(words, "")
            if dot:
                self._put(option, path, value)
            else:
                rest += self._merge_whole(option, value)
        return rest + [word for option, value in self._values.items()
                       for word in (option, json.dumps(value))]

    def _merge_whole(self, option: str, text: str) -> list[str]:
        try:
            whole = json.loads(text)
        except ValueError:
            whole = None
        if not isinstance(whole, dict):
            return [option, text]    # not an object: argparse reads it, or reports it
        self._merge(option, self._values.setdefault(option, {}), whole)
        return []

    def _put(self, option: str, path: str, text: str) -> None:
        is_append = path.endswith("+")
        *parents, last = path.rstrip("+").split(".")
        value: Any = [_value(word) for word in text.split(",")] if is_append else _value(text)
        whole: dict[str, Any] = {last: value}
        for part in reversed(parents):
            whole = {part: whole}
        self._merge(option, self._values.setdefault(option, {}), whole)

    def _merge(self, path: str, target: dict[str, Any], extra: Mapping[str, Any]) -> None:
        for key, value in extra.items():
            old = target.get(key)
            if isinstance(value, dict) and isinstance(old, dict):
                self._merge(f"{path}.{key}", old, value)
            elif isinstance(value, list) and isinstance(old, list):
                target[key] = old + value
            else:
                if key in target:
                    self._warn(f"{path}.{key}")
                target[key] = value


def _value(text: str) -> Any:
    """A dotted value: JSON, else a human-readable integer, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        try:
            return human_int(text)
        except argparse.ArgumentTypeError:
            return text


def duplicates(args: list[str]) -> Iterator[str]:
    """Long flags that appear more than once."""
    names = [arg.partition("=")[0] for arg in args if arg.startswith("--")]
    return (name for name in dict.fromkeys(names) if names.count(name) > 1)
