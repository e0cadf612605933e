"""Log lines as they appear: level, prefix, colour, config files, once."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

CODE = """
from vllm.logger import init_logger, set_process_name
logger = init_logger("vllm.x")
{extra}
logger.debug("quiet"); logger.info("two\\nlines")
logger.warning_once("w"); logger.warning_once("w")
"""


def run(extra: str = "", **variables: str) -> str:
    keep = {k: v for k, v in os.environ.items()
            if not k.startswith("VLLM_") and k not in ("NO_COLOR", "FORCE_COLOR")}
    result = subprocess.run([sys.executable, "-c", CODE.format(extra=extra)], env=keep | variables,
                            text=True, capture_output=True, check=False)
    return result.stdout + result.stderr


def test_a_line_has_level_time_place_and_message() -> None:
    lines = run().splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"INFO \d\d-\d\d \d\d:\d\d:\d\d \[<string>:\d+\] two", lines[0])
    assert re.fullmatch(r"INFO .* lines", lines[1])
    assert re.fullmatch(r"WARNING .* w", lines[2])


def test_level_prefix_and_process_name() -> None:
    text = run('set_process_name("APIServer")', VLLM_LOGGING_LEVEL="DEBUG",
               VLLM_LOGGING_PREFIX="[prod] ")
    assert re.match(r"\[prod\] \(APIServer pid=\d+\) DEBUG .* quiet", text)


def test_lines_are_of_the_caller_and_once_each(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("from vllm.logger import init_logger\nlogger = init_logger('vllm.y')\n"
                    "for i in (1, 1, 2):\n    logger.info_once('number %d', i)\n"
                    "logger.debug_once('quiet')\n")
    result = subprocess.run([sys.executable, str(file)], text=True, capture_output=True,
                            check=False, env=os.environ | {"PYTHONPATH": os.getcwd()})
    ends = [line.split("[", 1)[1] for line in result.stdout.splitlines()]
    assert ends == ["module.py:4] number 1", "module.py:4] number 2"]


def test_a_traceback_keeps_the_head_on_each_line() -> None:
    lines = run("try: 1/0\nexcept ZeroDivisionError: logger.exception('failed')").splitlines()
    trace = [line for line in lines if line.startswith("ERROR")]
    assert trace[0].endswith("failed") and trace[-1].endswith("ZeroDivisionError: division by zero")
    assert all(re.match(r"ERROR \d\d-\d\d ", line) for line in trace)


def test_colour() -> None:
    assert "\033[" not in run()
    assert "\033[32mINFO\033[0m" in run(VLLM_LOGGING_COLOR="always")
    assert "\033[" in run(FORCE_COLOR="1")
    assert "\033[" not in run(VLLM_LOGGING_COLOR="never", FORCE_COLOR="0")


def config(level: str) -> dict[str, object]:
    return {"version": 1, "disable_existing_loggers": False,
            "formatters": {"f": {"format": "CUSTOM %(message)s"}},
            "handlers": {"h": {"class": "logging.StreamHandler", "formatter": "f"}},
            "loggers": {"vllm": {"level": level, "handlers": ["h"], "propagate": False}}}


def test_config_file_in_json_or_yaml(tmp_path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(config("DEBUG")))
    (tmp_path / "a.yaml").write_text(json.dumps(config("INFO")))
    assert "CUSTOM quiet" in run(VLLM_LOGGING_CONFIG_PATH=str(tmp_path / "a.json"))
    text = run(VLLM_LOGGING_CONFIG_PATH=str(tmp_path / "a.yaml"))
    assert "CUSTOM quiet" not in text and "CUSTOM w" in text


def test_config_file_that_is_wrong_or_unwanted(tmp_path) -> None:
    (tmp_path / "a.json").write_text("[]")
    path = str(tmp_path / "a.json")
    assert "must hold a mapping" in run(VLLM_LOGGING_CONFIG_PATH=path)
    assert "unset one of them" in run(VLLM_LOGGING_CONFIG_PATH=path, VLLM_CONFIGURE_LOGGING="0")


def test_logging_can_be_left_alone() -> None:
    assert "two" not in run(VLLM_CONFIGURE_LOGGING="0")
