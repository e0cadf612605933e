"""The command line of every subcommand: flags come from config fields, rules from vLLM's parser.

Arguments are first brought to one form (dashes, dotted JSON, `-O3`, the YAML file's rows), then
argparse reads them. Only what was given ends up in the namespace; defaults stay in the configs.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from vllm.config import flags
from vllm.config.flags import Flag
from vllm.exceptions import ConfigError

Origins = dict[str, str]

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


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
    except (KeyError, ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an integer such as 4096, 4k (4000) or 4K (4096)") from None
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(value)


def _max_model_len(text: str) -> int | str:
    return "auto" if text in ("auto", "-1") else human_int(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None


def _nullable(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse_or_none(text: str) -> Any:
        return None if text == "None" else parse(text)

    parse_or_none.__name__ = getattr(parse, "__name__", "value")
    return parse_or_none


class HelpFormatter(argparse.HelpFormatter):
    """Two columns that leave room for long flag names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=38, width=100)


class FlagParser(argparse.ArgumentParser):
    """An argument parser whose flags are config fields."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            allow_abbrev=False, add_help=False, formatter_class=HelpFormatter,
            argument_default=argparse.SUPPRESS,
            usage="%(prog)s [model] [options]", **options)
        self.origins: Origins = {}
        self._json_flags: dict[str, str] = {"--compilation-config": "--compilation-config"}
        self._list_flags: set[str] = set()
        self._own_group = self.add_argument_group("options")
        self._own_group.add_argument(
            "--help", "-h", nargs="?", const="groups", metavar="TOPIC",
            help="groups of flags; =all: every flag; =Group: one group; =word: flags that match")

    # ---- declaring ----------------------------------------------------------------------------

    def add_config(self, title: str, config: type) -> None:
        """Declare the flags of one config dataclass under a heading."""
        group = self.add_argument_group(title, (config.__doc__ or "").strip().splitlines()[0])
        for name, spec in flags.flags_of(config).items():
            self._add_flag(group, name, spec)

    def _add_flag(self, group: Any, name: str, spec: Flag) -> None:
        option = "--" + name.replace("_", "-")
        names = [option, *spec.short, *spec.aliases]
        options: dict[str, Any] = {"dest": name, "help": spec.meaning.replace("%", "%%")}
        if spec.kind == flags.BOOL:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= self._value_options(name, spec)
        group.add_argument(*names, **options)
        if spec.kind == flags.JSON:
            self._json_flags |= dict.fromkeys(names, option)
        if spec.kind in (flags.STR_LIST, flags.INT_LIST):
            self._list_flags.add(option)

    def _value_options(self, name: str, spec: Flag) -> dict[str, Any]:
        parse: Callable[[str], Any] = {
            flags.INT: int, flags.HUMAN_INT: human_int, flags.FLOAT: float, flags.JSON: _json,
            flags.INT_LIST: int,
        }.get(spec.kind, str)  # type: ignore[assignment]
        if name == "max_model_len":
            parse = _max_model_len
        options: dict[str, Any] = {"type": _nullable(parse), "metavar": name.upper()}
        if spec.choices and not spec.missing:
            options["choices"] = spec.choices
            options["metavar"] = "{" + ",".join(spec.choices) + "}"
        if name == "performance_mode":
            options |= {"nargs": "?", "const": "throughput"}
        if spec.kind in (flags.STR_LIST, flags.INT_LIST):
            options["nargs"] = "+"
        if spec.kind == flags.BOOL_OR_STR:
            options |= {"nargs": "?", "const": True}
        return options

    # ---- parsing ------------------------------------------------------------------------------

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        """Parse, or print an error and exit with 2 (or help and exit with 0)."""
        given = list(sys.argv[1:] if args is None else args)
        try:
            known: argparse.Namespace
            known, unknown = self.parse_known_args(self._prepare(given), namespace)
        except ConfigError as error:
            self.error(str(error))
        topic = getattr(known, "help", None)
        if topic is not None:
            self._show_help(topic)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggest(unknown)}")
        return known

    def _prepare(self, args: list[str]) -> list[str]:
        args = self._with_file(args)
        args = [word for arg in args for word in _one_form(arg)]
        args = self._fold_dotted(args)
        self._warn_duplicates(args)
        return args

    def _with_file(self, args: list[str]) -> list[str]:
        """Replace `--config FILE` by the file's rows, before everything that overrides them."""
        files, rest, skip = [], [], False
        for i, arg in enumerate(args):
            if skip:
                skip = False
            elif arg == "--config":
                if i + 1 == len(args):
                    raise ConfigError("--config needs a YAML file")
                files.append(args[i + 1])
                skip = True
            elif arg.startswith("--config="):
                files.append(arg.partition("=")[2])
            else:
                rest.append(arg)
        if len(files) > 1:
            raise ConfigError("--config was given twice; one file is allowed")
        if not files:
            return rest
        rows = self._read_file(files[0])
        positional = rest[:1] if rest and not rest[0].startswith("-") else []
        if positional and rows[:1] and not rows[0].startswith("-"):
            rows = rows[1:]
        return [*positional, *rows, *rest[len(positional):]]

    def _read_file(self, path: str) -> list[str]:
        import yaml

        if not path.endswith((".yaml", ".yml")):
            raise ConfigError(f"--config {path}: the file's name must end in .yaml or .yml")
        try:
            with open(path, encoding="utf-8") as file:
                rows = yaml.safe_load(file) or {}
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"--config {path} can't be read: {error}") from error
        if not isinstance(rows, dict):
            raise ConfigError(f"--config {path} must hold a mapping of flag names to values")
        words: list[str] = []
        for key, value in rows.items():
            name = str(key).replace("_", "-")
            self.origins[name.replace("-", "_")] = path
            words = _file_words(self, name, value, words)
        return words

    def has_option(self, option: str) -> bool:
        """True if `option` is declared."""
        return option in self._option_string_actions

    def _fold_dotted(self, args: list[str]) -> list[str]:
        """`--x.a.b 1` -> one `--x '{"a": {"b": 1}}'`."""
        rest: list[str] = []
        folded: dict[str, Any] = {}
        i = 0
        while i < len(args):
            name, equals, value = args[i].partition("=")
            root, dot, path = name.partition(".")
            option = self._json_flags.get(root)
            if option is None or not name.startswith("-"):
                rest.append(args[i])
            elif dot:
                if not equals:
                    i += 1
                    if i == len(args):
                        raise ConfigError(f"{name} needs a value")
                    value = args[i]
                _put(folded.setdefault(option, {}), path, value)
            else:
                if not equals:
                    i += 1
                    value = args[i] if i < len(args) else ""
                whole = _loads(value) if value else None
                if isinstance(whole, dict):
                    _merge(folded.setdefault(option, {}), whole)
                else:
                    rest += [option, value]
            i += 1
        return rest + [word for key, value in folded.items() for word in (key, json.dumps(value))]

    def _warn_duplicates(self, args: list[str]) -> None:
        names = [arg.partition("=")[0] for arg in args if arg.startswith("--")]
        for name in dict.fromkeys(n for n in names if names.count(n) > 1):
            key = name[2:].replace("-", "_")
            if self.origins.pop(key, None) is None and name in self._option_string_actions:
                print(f"warning: Found duplicate keys {name}; the last one wins", file=sys.stderr)

    # ---- help and errors ----------------------------------------------------------------------

    def _suggest(self, unknown: Iterable[str]) -> str:
        for word in unknown:
            if word.startswith("-"):
                close = difflib.get_close_matches(
                    word.partition("=")[0], self._option_string_actions, n=1)
                return f"; did you mean {close[0]}?" if close else ""
        return ""

    def _show_help(self, topic: str) -> NoReturn:
        groups = [group for group in self._action_groups if group._group_actions]
        if topic == "all":
            print(self.format_help())
        elif topic == "groups":
            print(self.format_usage())
            if self.description:
                print(self.description + "\n")
            for group in groups:
                print(f"  {group.title:28} {group.description or ''} "
                      f"({len(group._group_actions)} flags)")
            print("\n--help=all: every flag; --help=Group: one group; --help=word: matching flags")
        elif any(topic.lower() == str(group.title).lower() for group in groups):
            self._print_actions(
                [a for g in groups if str(g.title).lower() == topic.lower()
                 for a in g._group_actions])
        else:
            found = [a for g in groups for a in g._group_actions
                     if topic.lower().replace("_", "-") in " ".join(a.option_strings)]
            if not found:
                self.exit(0, f"no flag or group matches {topic!r}\n")
            self._print_actions(found)
        self.exit(0)

    def _print_actions(self, actions: list[argparse.Action]) -> None:
        formatter = self._get_formatter()
        formatter.add_arguments(actions)
        print(formatter.format_help())


def _one_form(arg: str) -> list[str]:
    """Underscores to dashes in the name (not after the first dot), and -O3 -> its long name."""
    if arg.startswith("-O") and (arg[2:].lstrip("=").isdigit() or arg == "-O"):
        return ["--optimization-level", *([arg[2:].lstrip("=")] if arg != "-O" else [])]
    if not arg.startswith("--"):
        return [arg]
    name, equals, value = arg.partition("=")
    root, dot, path = name.partition(".")
    return [root.replace("_", "-") + dot + path + equals + value]


def _file_words(parser: FlagParser, name: str, value: Any, words: list[str]) -> list[str]:
    option = f"--{name}"
    if name in ("model", "model-tag") and isinstance(value, str):
        return [value, *words]
    if value is True:
        return [*words, option]
    if value is False:
        return [*words, f"--no-{name}"] if parser.has_option(f"--no-{name}") else words
    if isinstance(value, list):
        return [*words, option, *map(str, value)]
    return [*words, option, json.dumps(value) if isinstance(value, dict) else str(value)]


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _value(text: str) -> Any:
    """A dotted value: JSON, else a human-readable integer, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        try:
            return human_int(text)
        except (argparse.ArgumentTypeError, ValueError):
            return text


def _put(target: dict[str, Any], path: str, text: str) -> None:
    append = path.endswith("+")
    *parents, last = path.rstrip("+").split(".")
    for part in parents:
        child = target.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{path} gives a key to {part}, which already has a value")
        target = child
    if append:
        target[last] = [*target.get(last, []), *[_value(word) for word in text.split(",")]]
    else:
        target[last] = _value(text)


def _merge(target: dict[str, Any], extra: dict[str, Any]) -> None:
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        elif isinstance(value, list) and isinstance(target.get(key), list):
            target[key] = target[key] + value
        else:
            target[key] = value
