"""Where benchmarks get their prompts: made up by a seed, or read from a file."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.config.flags import FLOAT, INT, STR, flag
from vllm.exceptions import ConfigError

if TYPE_CHECKING:
    from vllm.transformers_utils.tokenizer import Tokenizer

MISSING = ("burstgpt", "hf", "random-mm", "random-rerank", "custom_image", "custom_audio",
           "spec_bench", "speed_bench", "timed_trace")  # fmt: skip
_SHAREGPT_MIN_TOKENS, _SHAREGPT_MAX_TOKENS = 4, 2048

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt: its text, its token ids, and how many tokens to generate."""

    text: str
    token_ids: list[int]
    output_len: int


@dataclass(frozen=True)
class DatasetArgs:
    """Prompts."""

    dataset_name: str = flag(
        "random",
        "where prompts come from",
        choices=("random", "sharegpt", "sonnet", "prefix_repetition", "custom"),
        missing=MISSING,
        feature="this dataset",
        aliases=("--dataset",),
    )
    dataset_path: str | None = flag(None, "file of the dataset", kind=STR)
    input_len: int | None = flag(
        None, "tokens per prompt", kind=INT, aliases=("--random-input-len", "--sonnet-input-len")
    )
    output_len: int | None = flag(
        None,
        "tokens to generate per prompt",
        kind=INT,
        aliases=("--random-output-len", "--sonnet-output-len", "--sharegpt-output-len",
                 "--custom-output-len"),
    )  # fmt: skip
    num_prompts: int = flag(1000, "how many prompts")
    prefix_len: int = flag(
        0, "tokens that all prompts begin with", aliases=("--random-prefix-len",)
    )
    random_range_ratio: float = flag(
        0.0, "lengths vary by this share, 0 to 1, up and down", kind=FLOAT
    )
    prefix_repetition_prefix_len: int = flag(256, "tokens of a shared prefix")
    prefix_repetition_suffix_len: int = flag(256, "tokens after the prefix")
    prefix_repetition_num_prefixes: int = flag(10, "how many different prefixes")
    prefix_repetition_output_len: int = flag(128, "tokens to generate")
    disable_shuffle: bool = flag(False, "keep the order of the file")


def load_samples(args: DatasetArgs, tokenizer: "Tokenizer", seed: int) -> list[Sample]:
    """The prompts of a run; the same for the same arguments and seed."""
    if args.num_prompts < 1:
        raise ConfigError(f"--num-prompts is {args.num_prompts}; it must be 1 or more.")
    if not 0 <= args.random_range_ratio <= 1:
        raise ConfigError("--random-range-ratio must be between 0 and 1.")
    make: dict[str, Callable[[DatasetArgs, _Words, random.Random], list[Sample]]] = {
        "random": _random,
        "prefix_repetition": _prefix_repetition,
        "sharegpt": _sharegpt,
        "sonnet": _sonnet,
        "custom": _custom,
    }
    samples = make[args.dataset_name](args, _Words(tokenizer), random.Random(seed))
    if not samples:
        raise ConfigError(f"{args.dataset_path} has no prompt of a usable length.")
    return samples


class _Words:
    """Makes texts of an exact number of tokens."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        special = set(tokenizer.all_special_ids)
        self._ids = [i for i in range(tokenizer.vocab_size) if i not in special]

    def draw(self, count: int, rng: random.Random) -> list[int]:
        """Random token ids; their text is likely to become other ids again."""
        return rng.choices(self._ids, k=count)

    def sample(self, token_ids: list[int], output_len: int) -> Sample:
        return Sample(self._tokenizer.decode(token_ids), token_ids, output_len)

    def of_text(self, text: str, output_len: int) -> Sample:
        return Sample(text, self._tokenizer.encode(text), output_len)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _random(args: DatasetArgs, words: _Words, rng: random.Random) -> list[Sample]:
    prefix = words.draw(args.prefix_len, rng)
    input_len = 1024 if args.input_len is None else args.input_len
    output_len = 128 if args.output_len is None else args.output_len
    samples = []
    for _ in range(args.num_prompts):
        count = _varied(input_len, args.random_range_ratio, rng)
        wanted = _varied(output_len, args.random_range_ratio, rng)
        samples.append(words.sample([*prefix, *words.draw(count, rng)], wanted))
    return samples


def _varied(length: int, ratio: float, rng: random.Random) -> int:
    return max(1, rng.randint(int(length * (1 - ratio)), int(length * (1 + ratio))))


def _prefix_repetition(args: DatasetArgs, words: _Words, rng: random.Random) -> list[Sample]:
    count = max(1, args.prefix_repetition_num_prefixes)
    prefixes = [words.draw(args.prefix_repetition_prefix_len, rng) for _ in range(count)]
    samples = []
    for index in range(args.num_prompts):
        suffix = words.draw(args.prefix_repetition_suffix_len, rng)
        token_ids = prefixes[index % count] + suffix
        samples.append(words.sample(token_ids, args.prefix_repetition_output_len))
    if not args.disable_shuffle:
        rng.shuffle(samples)
    return samples


def _sharegpt(args: DatasetArgs, words: _Words, rng: random.Random) -> list[Sample]:
    """The first question of each conversation; its answer says how much to generate."""
    conversations = json.loads(_read(args))
    turns = [
        one["conversations"][:2] for one in conversations if len(one.get("conversations", ())) >= 2
    ]
    samples = []
    for question, answer in _shuffled(turns, args, rng):
        sample = words.of_text(question["value"], 0)
        output_len = args.output_len or len(words.encode(answer["value"]))
        lengths = (len(sample.token_ids), output_len)
        if min(lengths) >= _SHAREGPT_MIN_TOKENS and sum(lengths) <= _SHAREGPT_MAX_TOKENS:
            samples.append(Sample(sample.text, sample.token_ids, output_len))
        if len(samples) == args.num_prompts:
            break
    return samples


def _sonnet(args: DatasetArgs, words: _Words, rng: random.Random) -> list[Sample]:
    """Lines of a poem up to the wanted length, after a common beginning."""
    lines = [line for line in _read(args).splitlines() if line.strip()]
    input_len = 550 if args.input_len is None else args.input_len
    samples = []
    for _ in range(args.num_prompts if lines else 0):
        text = "Continue the poem with as many lines as you can:\n"
        while len(words.encode(text)) < input_len:
            text += rng.choice(lines) + "\n"
        samples.append(words.of_text(text, args.output_len or 150))
    return samples


def _custom(args: DatasetArgs, words: _Words, rng: random.Random) -> list[Sample]:
    """JSON lines with a `prompt`, and perhaps `output_tokens`."""
    rows = [json.loads(line) for line in _read(args).splitlines() if line.strip()]
    samples = []
    for row in _cycle(_shuffled(rows, args, rng), args.num_prompts):
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise ConfigError(f"{args.dataset_path}: every line must be an object with a prompt.")
        output_len = args.output_len or row.get("output_tokens") or 256
        samples.append(words.of_text(row["prompt"], int(output_len)))
    return samples


def _read(args: DatasetArgs) -> str:
    if args.dataset_path is None:
        raise ConfigError(f"--dataset-name {args.dataset_name} needs --dataset-path.")
    try:
        return Path(args.dataset_path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--dataset-path {args.dataset_path}: {error.strerror}.") from error


def _shuffled(items: list[T], args: DatasetArgs, rng: random.Random) -> list[T]:
    if not args.disable_shuffle:
        rng.shuffle(items)
    return items


def _cycle(items: list[Any], count: int) -> Iterator[Any]:
    for index in range(count if items else 0):
        yield items[index % len(items)]
