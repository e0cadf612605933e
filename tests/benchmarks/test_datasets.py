"""Prompts of benchmarks: lengths, seeds, files."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.v1.engine.fake import write_tokenizer
from vllm.benchmarks.datasets import DatasetArgs, load_samples
from vllm.exceptions import ConfigError
from vllm.transformers_utils.tokenizer import Tokenizer, get_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    """A token per byte."""
    return get_tokenizer(write_tokenizer(tmp_path))


def test_random(tokenizer: Tokenizer) -> None:
    args = DatasetArgs(num_prompts=20, input_len=30, output_len=7, prefix_len=5)
    samples = load_samples(args, tokenizer, 1)
    assert [len(one.token_ids) for one in samples] == [35] * 20
    assert {one.output_len for one in samples} == {7}
    assert len({tuple(one.token_ids[:5]) for one in samples}) == 1
    assert len({tuple(one.token_ids) for one in samples}) == 20
    assert not set(tokenizer.all_special_ids) & {i for one in samples for i in one.token_ids}
    assert samples == load_samples(args, tokenizer, 1)
    assert samples != load_samples(args, tokenizer, 2)
    [default] = load_samples(DatasetArgs(num_prompts=1), tokenizer, 0)
    assert (len(default.token_ids), default.output_len) == (1024, 128)


def test_range_ratio(tokenizer: Tokenizer) -> None:
    args = DatasetArgs(num_prompts=200, input_len=100, output_len=50, random_range_ratio=0.5)
    samples = load_samples(args, tokenizer, 0)
    lengths = [len(one.token_ids) for one in samples]
    assert 50 <= min(lengths) < 60 and 140 < max(lengths) <= 150
    assert all(25 <= one.output_len <= 75 for one in samples)


def test_prefix_repetition(tokenizer: Tokenizer) -> None:
    args = DatasetArgs(
        dataset_name="prefix_repetition", num_prompts=12, prefix_repetition_prefix_len=8,
        prefix_repetition_suffix_len=4, prefix_repetition_num_prefixes=3,
    )  # fmt: skip
    samples = load_samples(args, tokenizer, 0)
    prefixes = [tuple(one.token_ids[:8]) for one in samples]
    assert sorted(prefixes.count(one) for one in set(prefixes)) == [4, 4, 4]


def test_files(tokenizer: Tokenizer, tmp_path: Path) -> None:
    talks = [{"conversations": [{"value": f"question {i}"}, {"value": "answer"}]} for i in range(5)]
    short: list[Any] = [{"conversations": [{"value": "q"}, {"value": "a"}]}, {}]
    file = tmp_path / "talks.json"
    file.write_text(json.dumps(talks + short))
    args = DatasetArgs(dataset_name="sharegpt", dataset_path=str(file), num_prompts=4)
    samples = load_samples(args, tokenizer, 0)
    assert len(samples) == 4
    assert all(one.text.startswith("question ") and one.output_len == 6 for one in samples)

    file = tmp_path / "lines.jsonl"
    file.write_text('{"prompt": "a"}\n\n{"prompt": "bc", "output_tokens": 9}\n')
    args = DatasetArgs(
        dataset_name="custom", dataset_path=str(file), num_prompts=3, disable_shuffle=True
    )
    samples = load_samples(args, tokenizer, 0)
    assert [(one.text, one.output_len) for one in samples] == [("a", 256), ("bc", 9), ("a", 256)]

    file = tmp_path / "poem.txt"
    file.write_text("line one\nline two\n")
    args = DatasetArgs(
        dataset_name="sonnet", dataset_path=str(file), num_prompts=2, input_len=90, output_len=5
    )
    for one in load_samples(args, tokenizer, 0):
        assert 90 <= len(one.token_ids) < 100


def test_refusals(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}")
    for fields in (
        {"dataset_name": "sharegpt"},
        {"dataset_name": "custom", "dataset_path": str(tmp_path / "none")},
        {"dataset_name": "custom", "dataset_path": str(tmp_path / "x")},
        {"num_prompts": 0},
        {"random_range_ratio": 2.0},
    ):
        with pytest.raises(ConfigError):
            load_samples(DatasetArgs(**fields), tokenizer, 0)  # type: ignore[arg-type]
