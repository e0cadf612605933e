"""Environment variables: typed, read once, wrong and unknown ones reported."""

import os
import subprocess
import sys

import pytest


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    return subprocess.run([sys.executable, "-c", code], env=keep | variables, text=True,
                          capture_output=True, check=False)


@pytest.mark.parametrize(("name", "text", "value"), [
    ("VLLM_MAX_N_SEQUENCES", "7", "7"), ("VLLM_LOG_STATS_INTERVAL", "2.5", "2.5"),
    ("VLLM_SERVER_DEV_MODE", "1", "True"), ("VLLM_SERVER_DEV_MODE", "true", "True"),
    ("VLLM_PLUGINS", "a, b", "['a', 'b']"), ("VLLM_PLUGINS", "", "[]"),
    ("VLLM_LOGGING_LEVEL", "debug", "'DEBUG'"), ("VLLM_API_KEY", "k", "'k'")])
def test_values_are_typed(name: str, text: str, value: str) -> None:
    code = f"from vllm import envs; print(repr(envs.{name}))"
    assert run(code, **{name: text}).stdout.strip() == value


CHECK = "from vllm import envs; print(envs.check_environment({}))"


@pytest.mark.parametrize(("name", "text", "allowed"), [
    ("VLLM_MAX_N_SEQUENCES", "many", "an integer"), ("VLLM_LOGGING_COLOR", "red", "auto, always"),
    ("VLLM_SERVER_DEV_MODE", "2", "0 or 1"), ("VLLM_PORT", "tcp://10.0.0.1:80", "Kubernetes"),
    ("VLLM_ALLOW_INSECURE_SERIALIZATION", "1", "never pickle")])
def test_wrong_values_are_errors(name: str, text: str, allowed: str) -> None:
    result = run(CHECK.format(""), **{name: text})
    assert result.returncode == 1
    assert name in result.stderr and allowed in result.stderr


def test_unknown_names_warn_or_fail() -> None:
    assert "did you mean VLLM_API_KEY?" in run(CHECK.format(""), VLLM_API_KEYS="x").stdout
    result = run(CHECK.format("True"), VLLM_API_KEYS="x")
    assert result.returncode == 1 and "VLLM_API_KEYS is not a known variable" in result.stderr


def test_names_of_missing_features_are_named() -> None:
    output = run(CHECK.format("True"), VLLM_ROCM_USE_AITER="1", VLLM_NCCL_SO_PATH="x").stdout
    assert "VLLM_ROCM_USE_AITER is set, but this build does not use it." in output
    assert "VLLM_NCCL_SO_PATH" in output


def test_nothing_is_said_of_variables_that_work() -> None:
    assert run(CHECK.format(""), VLLM_LOGGING_LEVEL="INFO").stdout.strip() == "[]"
