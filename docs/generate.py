"""Writes docs/flags.md and docs/environment.md from the declarations: `python -m docs.generate`."""

import argparse
from pathlib import Path

from vllm import envs
from vllm.config.flags import Flag, flags_of, option_of
from vllm.config.vllm import config_classes
from vllm.entrypoints.openai.cli_args import FrontendArgs

HERE = Path(__file__).parent
_NOTE = "Written by docs/generate.py from the declarations; do not edit.\n"


def flags_page() -> str:
    """Every flag that works, by config; then the ones whose feature is not there yet."""
    parts = [f"# Flags of `vllm serve`\n\n{_NOTE}\n"
             "Names take `_` or `-`. The same names without `--`, with `_`, are the keyword "
             "arguments of `LLM` and `EngineArgs`, and with either the keys of a `--config` file."
             "\n"]
    missing: dict[str, list[str]] = {}
    for config in [FrontendArgs, *config_classes().values()]:
        rows, defaults = [], config()
        for name, spec in flags_of(config).items():
            if spec.is_supported:
                rows.append(_row(name, spec, getattr(defaults, name)))
            else:
                missing.setdefault(str(spec.feature), []).append(f"`{option_of(name)}`")
        if rows:
            title = "Server" if config is FrontendArgs else config.__name__
            parts.append(f"\n## {title}\n\n{(config.__doc__ or '').splitlines()[0]}\n\n"
                         "| Flag | Type | Default | Meaning |\n|---|---|---|---|\n"
                         + "\n".join(rows) + "\n")
    parts.append("\n## Not supported yet\n\nThese flags of vLLM parse; another value than the "
                 "default ends the start with one line.\n\n| Feature | Flags |\n|---|---|\n")
    parts += [f"| {feature} | {', '.join(names)} |\n" for feature, names in missing.items()]
    return "".join(parts)


def _row(name: str, spec: Flag, default: object) -> str:
    names = ", ".join(f"`{option}`" for option in (option_of(name), *spec.short, *spec.aliases))
    kind = " \\| ".join(spec.choices) if spec.choices else spec.kind.replace("|", " or ")
    shown = "" if default in (None, "", {}, []) else f"`{default}`"
    return f"| {names} | {kind} | {shown} | {spec.meaning} |"


def environment_page() -> str:
    """Every variable that is read."""
    rows = [f"| `{row.name}` | {_shown(row.default)} | {row.meaning} |"
            for row in envs.VARIABLES.values()]
    return (f"# Environment variables\n\n{_NOTE}\nRead once at the start. A flag beats its "
            "variable. Other names that start with `VLLM_` give a warning, or an error with "
            "`--fail-on-environ-validation`.\n\n| Variable | Default | Meaning |\n|---|---|---|\n"
            + "\n".join(rows) + "\n")


def _shown(default: object) -> str:
    if default is None or default == "":
        return ""
    return f"`{int(default)}`" if isinstance(default, bool) else f"`{default}`"


PAGES = {"flags.md": flags_page, "environment.md": environment_page}

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for file_name, page in PAGES.items():
        (HERE / file_name).write_text(page())
