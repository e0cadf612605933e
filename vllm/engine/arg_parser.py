"""The command line of every subcommand: flags come from config fields, rules from vLLM's parser.

Only what was given ends up in the namespace; defaults stay in the configs. A wrong command line
exits with 2 and says what is close to it.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from vllm.config import flags
from vllm.config.flags import Flag, flags_of, option_of
from vllm.engine.arg_forms import (
    JsonFolder,
    duplicates,
    human_int,
    one_form,
    read_config_file,
    take_config_file,
)
from vllm.exceptions import ConfigError

_HELP = "groups of flags; =all: every flag; =Group: one group; =word: flags that match"
# A command with no more flags than this shows them all at once.
_FEW_FLAGS = 12
_CONFIG_HELP = "YAML file with flags: long names without --, either separator; flags here win"


def add_config(parser: argparse.ArgumentParser, title: str, config: type) -> None:
    """Declare the flags of one config dataclass under a heading, on any parser."""
    group = parser.add_argument_group(title, (config.__doc__ or "").strip().splitlines()[0])
    is_ours = isinstance(parser, FlagParser)   # its namespace holds only what was given
    defaults = config()
    for name, spec in flags_of(config).items():
        default = argparse.SUPPRESS if is_ours else getattr(defaults, name)
        group.add_argument(
            option_of(name), *spec.short, *spec.aliases, dest=name, default=default,
            help=_help(spec, getattr(defaults, name)), **_options(name, spec))
        if isinstance(parser, FlagParser):
            parser.note(name, spec)


def _help(spec: Flag, default: object) -> str:
    shown = "" if default in (None, "", False, {}, []) or not spec.is_supported else (
        f" (default: {default})")
    return (spec.meaning + shown).replace("%", "%%")


def _options(name: str, spec: Flag) -> dict[str, Any]:
    """What argparse needs to know of a flag's value."""
    if spec.kind == flags.BOOL:
        return {"action": argparse.BooleanOptionalAction}
    options: dict[str, Any] = {"type": _nullable(_parser_of(name, spec)), "metavar": name.upper()}
    if spec.choices and spec.is_supported:
        options |= {"choices": (*spec.choices, *spec.missing),
                    "metavar": "{" + ",".join(spec.choices) + "}"}
    if name == "performance_mode":
        options |= {"nargs": "?", "const": "throughput"}
    if spec.kind in (flags.STR_LIST, flags.INT_LIST):
        options["nargs"] = "+"
    if spec.is_repeatable:
        options["action"] = "extend"
    if spec.kind == flags.BOOL_OR_STR:
        options |= {"nargs": "?", "const": True}
    return options


def _parser_of(name: str, spec: Flag) -> Callable[[str], Any]:
    if name == "max_model_len":
        return _max_model_len
    parsers: dict[str, Callable[[str], Any]] = {
        flags.INT: _integer, flags.HUMAN_INT: human_int, flags.FLOAT: float, flags.JSON: _json,
        flags.INT_LIST: _integer}
    return parsers.get(spec.kind, str)


def _max_model_len(text: str) -> int | str:
    return "auto" if text in ("auto", "-1") else human_int(text)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None


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
    """An argument parser whose flags are config fields. `origins`: flag -> the file it is from."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            allow_abbrev=False, add_help=False, formatter_class=HelpFormatter,
            argument_default=argparse.SUPPRESS, **options)
        self.origins: dict[str, str] = {}
        self.json_flags: dict[str, str] = {}
        """Every spelling of a flag that takes JSON -> its long name."""
        self.additive_flags: set[str] = set()
        """Flags that may be given several times: JSON parts merge, repeatable lists add up."""
        group = self.add_argument_group("options")
        group.add_argument("--help", "-h", nargs="?", const="groups", metavar="TOPIC", help=_HELP)
        group.add_argument("--config", metavar="FILE", help=_CONFIG_HELP)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        """Parse, or print an error and exit with 2 (or help and exit with 0)."""
        try:
            prepared = self._prepare(list(sys.argv[1:] if args is None else args))
        except ConfigError as error:
            self.error(str(error))
        known: argparse.Namespace
        known, unknown = self.parse_known_args(prepared, namespace)
        topic = getattr(known, "help", None)
        if topic is not None:
            self._show_help(topic)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggest(unknown)}")
        return known

    def note(self, name: str, spec: Flag) -> None:
        """Remember how a declared flag is treated before argparse sees it."""
        spellings = [option_of(name), *spec.short, *spec.aliases]
        if spec.kind == flags.JSON:
            self.json_flags |= dict.fromkeys(spellings, option_of(name))
        if spec.kind == flags.JSON or spec.is_repeatable:
            self.additive_flags |= set(spellings)

    def has_option(self, option: str) -> bool:
        """True if `option` is declared; with a dot at its end, if it takes JSON."""
        return option[:-1] in self.json_flags if option.endswith(".") else (
            option in self._option_string_actions)

    def _prepare(self, args: list[str]) -> list[str]:
        args, file = take_config_file(args)
        given = [word for arg in args for word in one_form(arg)]
        folder = JsonFolder(self.json_flags, self._warn_duplicate)
        for name in duplicates(given):
            if self.has_option(name) and name not in self.additive_flags:
                self._warn_duplicate(name)
        return folder.fold([*self._file_words(file, given), *given])

    def _file_words(self, file: str | None, given: list[str]) -> list[str]:
        """The words of the rows that the command line does not override."""
        if file is None:
            return []
        names = {word.partition("=")[0].removeprefix("--no-").removeprefix("--") for word in given
                 if word.startswith("--")}
        words = []
        for name, row in read_config_file(file, self.has_option).items():
            if name not in names or f"--{name}" in self.json_flags:
                self.origins["model" if name == "model-tag" else name.replace("-", "_")] = file
                words += row
        return words

    def _warn_duplicate(self, name: str) -> None:
        print(f"warning: Found duplicate keys {name}; the last one wins", file=sys.stderr)

    # ---- help and errors ----------------------------------------------------------------------

    def error(self, message: str) -> NoReturn:
        """One line of usage and the error, exit 2: the flags alone would fill the screen."""
        usage = self.format_usage().split(" [", 1)[0].strip()
        self.exit(2, f"{usage} [options]\n{self.prog}: error: {message}\n")

    def _suggest(self, unknown: Iterable[str]) -> str:
        for word in unknown:
            if word.startswith("-"):
                close = difflib.get_close_matches(
                    word.partition("=")[0], self._option_string_actions, n=1)
                return f"; did you mean {close[0]}?" if close else ""
        return ""

    def _show_help(self, topic: str) -> NoReturn:
        groups = [group for group in self._action_groups if group._group_actions]
        named = [g for g in groups if topic.lower() == str(g.title).lower()]
        if topic == "all" or (topic == "groups" and len(self._actions) <= _FEW_FLAGS):
            print(self.format_help())
        elif topic == "groups":
            self._print_groups(groups)
        elif named:
            self._print_actions([a for g in named for a in g._group_actions])
        else:
            word = topic.lower().replace("_", "-")
            found = [a for g in groups for a in g._group_actions
                     if word in " ".join(a.option_strings)]
            if found:
                self._print_actions(found)
            else:
                print(f"no flag or group matches {topic!r}; --help lists the groups")
        self.exit(0)

    def _print_groups(self, groups: Sequence[Any]) -> None:
        model = " [model]" if any(a.dest == "model_tag" for a in self._actions) else ""
        print(f"usage: {self.prog}{model} [options]\n")
        if self.description:
            print(self.description + "\n")
        for group in groups:
            number = len(group._group_actions)
            count = f"{number} flag" if number == 1 else f"{number} flags"
            print(f"  {group.title:26} {count:>9}  {group.description or ''}")
        print("\n--help=all: every flag; --help=Group: one group; --help=word: matching flags")

    def _print_actions(self, actions: Sequence[argparse.Action]) -> None:
        formatter = self._get_formatter()
        formatter.add_arguments(actions)
        print(formatter.format_help())
