"""The sampling pipeline against a row-by-row oracle that follows the documented order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vllm.kernels.reference_sampling import philox_uniform
from vllm.sampling_params import SamplingParams
from vllm.v1.messages import NewRequestData, TokenLogprobs
from vllm.v1.sample.logprobs import LogprobsMode
from vllm.v1.sample.metadata import SamplingColumns
from vllm.v1.sample.sampler import Sampler, SamplerOutput

VOCAB = 24
EOS = 3
F64 = NDArray[np.float64]


class Batch:
    """Rows as the runner keeps them, without the runner."""

    def __init__(self, max_rows: int = 16) -> None:
        self.columns = SamplingColumns(max_rows)
        self.tokens = np.zeros((max_rows, 64), np.int32)
        self.num_tokens = np.zeros(max_rows, np.int32)
        self.num_prompt = np.zeros(max_rows, np.int32)

    def put(
        self, row: int, prompt: Sequence[int], output: Sequence[int], params: Any, seed: int = 0
    ) -> None:
        tokens = [*prompt, *output]
        self.tokens[row, : len(tokens)] = tokens
        self.num_tokens[row], self.num_prompt[row] = len(tokens), len(prompt)
        data = NewRequestData(str(row), tokens, len(prompt), params, seed, [EOS], [[0]], 0)
        self.columns.add(row, data)

    def sample(self, rows: list[int], logits: Any, mode: str = "raw_logprobs") -> SamplerOutput:
        slots = np.array(rows, np.int64)
        metadata = self.columns.select(
            slots, self.tokens, self.num_tokens[slots], self.num_prompt[slots]
        )
        return Sampler(LogprobsMode(mode)).sample(np.array(logits, np.float32), metadata)


def constrained(
    logits: Any, prompt: Sequence[int], output: Sequence[int], p: SamplingParams
) -> F64:
    """Steps 2 to 6 on one row."""
    x = np.array(logits, np.float64)
    if p.allowed_token_ids:
        keep = np.zeros(VOCAB, bool)
        keep[p.allowed_token_ids] = True
        x[~keep] = -np.inf
    for word in p.bad_words_token_ids or []:
        if list(output)[len(output) - len(word) + 1 :] == word[:-1] or len(word) == 1:
            x[word[-1]] = -np.inf
    if len(output) < p.min_tokens:
        x[p.stop_token_ids or []] = -np.inf
        if not p.ignore_eos:
            x[EOS] = -np.inf
    for token, bias in (p.logit_bias or {}).items():
        x[token] += bias
    for token in set(prompt) | set(output):
        x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * (
            p.repetition_penalty
        )
    for token in set(output):
        x[token] -= p.frequency_penalty * list(output).count(token) + p.presence_penalty
    return x


def truncated(x: F64, p: SamplingParams) -> F64:
    """Step 7: what is drawn from."""
    if p.greedy:
        return x
    x = x / p.temperature
    probabilities = np.exp(x - x.max())
    x = np.where(probabilities >= p.min_p * (1 - 1e-6), x, -np.inf)
    if p.top_k:
        order = np.sort(x)[::-1]
        x = np.where(x >= order[min(p.top_k, VOCAB) - 1], x, -np.inf)
    if p.top_p < 1:
        order = np.argsort(-x, kind="stable")
        mass = np.cumsum(np.exp(x[order] - x.max()))
        last = int(np.searchsorted(mass, p.top_p * mass[-1]))
        dropped = order[last + 1 :]
        x[dropped] = -np.inf
    return x


def drawn(x: F64, p: SamplingParams, seed: int, position: int) -> int:
    if p.greedy:
        return int(np.argmax(x))
    uniform = philox_uniform(np.array([seed]), np.array([position]))[0]
    mass = np.cumsum(np.exp(x - x.max()))
    return int(np.searchsorted(mass, uniform * mass[-1], side="right"))


tokens = st.integers(0, VOCAB - 1)
params = st.builds(
    lambda words, **fields: SamplingParams(**fields, bad_words_token_ids=words or None),
    words=st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=2),
    max_tokens=st.just(64),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 10, 100]),
    top_p=st.sampled_from([1.0, 0.9, 0.4, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    presence_penalty=st.sampled_from([0.0, 0.7, -1.0]),
    min_tokens=st.sampled_from([0, 2, 8]),
    stop_token_ids=st.lists(tokens, max_size=3),
    ignore_eos=st.booleans(),
    logit_bias=st.none() | st.dictionaries(tokens, st.sampled_from([-100.0, -2, 5]), max_size=4),
    allowed_token_ids=st.none() | st.lists(tokens, min_size=8, max_size=20),
    logprobs=st.none() | st.integers(0, 4),
)
rows = st.lists(
    st.tuples(
        st.lists(tokens, min_size=1, max_size=6),
        st.lists(tokens, max_size=8),
        params,
        st.integers(0, 2**63 - 1),
    ),
    min_size=1,
    max_size=6,
)


@given(rows, st.integers(0, 2**32), st.sampled_from(list(LogprobsMode)))
@settings(max_examples=300, deadline=None)
def test_every_row_follows_the_order(requests: Any, noise: int, mode: LogprobsMode) -> None:
    logits = np.random.default_rng(noise).standard_normal((len(requests), VOCAB)) * 4
    logits = logits.astype(np.float32)
    batch = Batch()
    for row, (prompt, output, p, seed) in enumerate(requests):
        batch.put(row, prompt, output, p, seed)
    order = list(range(len(requests)))[::-1]
    result = batch.sample(order, logits[order], mode.value)
    for i, row in enumerate(order):
        prompt, output, p, seed = requests[row]
        x = constrained(logits[row], prompt, output, p)
        if not np.isfinite(x.max()):
            assert "leave no token" in result.errors[i]
            continue
        assert i not in result.errors
        token, position = int(result.token_ids[i]), len(output)
        processed = truncated(x, p)
        if token != drawn(processed, p, seed, position):
            assert token in close_calls(x, p, seed, position), "more than rounding is wrong"
        else:
            check_logprobs(result.logprobs.get(i), p, token, logits[row], processed, mode)


def close_calls(x: F64, p: SamplingParams, seed: int, position: int) -> set[int]:
    """Tokens that the oracle would choose if the logits were rounded a little otherwise."""
    rng = np.random.default_rng(0)
    return {
        drawn(truncated(x + rng.uniform(-2e-5, 2e-5, VOCAB), p), p, seed, position)
        for _ in range(50)
    }


def check_logprobs(
    entry: TokenLogprobs | None,
    p: SamplingParams,
    token: int,
    raw: Any,
    processed: F64,
    mode: LogprobsMode,
) -> None:
    if p.logprobs is None:
        assert entry is None
        return
    assert entry is not None
    source = processed if mode.is_processed else np.asarray(raw, np.float64)
    values = source
    if not mode.as_logits:
        values = source - source.max() - np.log(np.exp(source - source.max()).sum())
    best = np.argsort(-source, kind="stable")[: p.logprobs]
    assert entry.token_ids[0] == token and entry.ranks[1:] == [*range(1, p.logprobs + 1)]
    np.testing.assert_allclose(entry.logprobs, values[entry.token_ids], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(values[entry.token_ids[1:]], values[best], rtol=1e-4, atol=1e-4)
    near = (np.abs(source - source[token]) < 1e-4).sum() - 1
    assert abs(entry.ranks[0] - (source >= source[token]).sum()) <= near


def test_listed_logprobs() -> None:
    logits = np.linspace(-1, 1, VOCAB, dtype=np.float32)[None]
    batch = Batch()
    batch.put(0, [1], [], SamplingParams(temperature=0.0, logprob_token_ids=[5, 0]))
    entry = batch.sample([0], logits).logprobs[0]
    assert entry.token_ids == [VOCAB - 1, 5, 0] and entry.ranks == [1, VOCAB - 5, VOCAB]
    expected = logits[0] - np.log(np.exp(logits[0]).sum())
    np.testing.assert_allclose(entry.logprobs, expected[[VOCAB - 1, 5, 0]], rtol=1e-5)


def test_nobody_asked_means_none() -> None:
    batch = Batch()
    for row in range(3):
        batch.put(row, [1], [2], SamplingParams(temperature=0.0))
    slots = np.arange(3)
    metadata = batch.columns.select(slots, batch.tokens, batch.num_tokens[:3], batch.num_prompt[:3])
    unused = ("temperature", "top_k", "top_p", "min_p", "seeds", "allowed", "bias", "banned")
    assert [name for name in unused if getattr(metadata, name) is not None] == []
    assert metadata.penalties is None and metadata.logprobs is None
    again = batch.columns.select(slots, batch.tokens, batch.num_tokens[:3], batch.num_prompt[:3])
    assert again is metadata, "an unchanged batch costs nothing"


def test_min_tokens_mask_ends() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [EOS, 9, 5]] = [3, 2, 1]
    for num_output, right in ((0, 5), (1, 5), (2, EOS)):
        batch = Batch()
        p = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=[9])
        batch.put(0, [1], [1] * num_output, p)
        assert batch.sample([0], logits).token_ids.tolist() == [right]


def test_bad_words_ban_the_last_token_only() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [7, 8]] = [2, 1]
    for output, right in (([], 7), ([6], 8), ([6, 5], 7), ([5, 6], 8)):
        batch = Batch()
        p = SamplingParams(temperature=0.0, bad_words_token_ids=[[6, 7]])
        batch.put(0, [6], output, p)
        assert batch.sample([0], logits).token_ids.tolist() == [right], output


def test_draws_depend_on_seed_and_position_alone() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((8, VOCAB)).astype(np.float32)
    batch = Batch()
    for row in range(8):
        p = SamplingParams(temperature=0.3 + row * 0.2, top_k=row * 3, max_tokens=64)
        batch.put(row, [1] * (row + 1), [2] * (row % 4), p, seed=1000 + row)
    together = batch.sample(list(range(8)), logits).token_ids.tolist()
    alone = [batch.sample([row], logits[row : row + 1]).token_ids[0] for row in range(8)]
    assert together == alone


def test_seeds_of_64_bits() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    seen = []
    for seed in (0, 2**63, 2**64 - 1, 2**64 - 2):
        batch = Batch()
        batch.put(0, [1], [], SamplingParams(), seed)
        seen.append(int(batch.sample([0], logits).token_ids[0]))
        signed = np.array([seed], np.uint64).astype(np.int64)
        assert seen[-1] == int(philox_uniform(signed, np.array([0]))[0] * VOCAB)


@pytest.mark.parametrize("rounds", [400])
def test_nothing_of_a_finished_request_stays_in_its_row(rounds: int) -> None:
    """Constrained requests end at random times; plain ones that take their rows equal solo runs."""
    rng = np.random.default_rng(5)
    plain = SamplingParams(max_tokens=64)
    batch, is_plain = Batch(8), dict[int, bool]()
    for _ in range(rounds):
        for row in range(8):
            if rng.random() < 0.4:
                if row in is_plain:
                    batch.columns.remove(row)
                is_plain[row] = rng.random() < 0.5
                p = plain if is_plain[row] else random_constraints(rng)
                batch.put(row, rng.integers(0, VOCAB, 4), [], p, seed=row)
        used = sorted(is_plain)
        logits = rng.standard_normal((len(used), VOCAB)).astype(np.float32)
        mixed = batch.sample(used, logits).token_ids if used else []
        for i, row in enumerate(used):
            if is_plain[row]:
                fresh = Batch(1)
                fresh.put(0, batch.tokens[row, :4], [], plain, seed=row)
                assert mixed[i] == fresh.sample([0], logits[i : i + 1]).token_ids[0]


def random_constraints(rng: Any) -> SamplingParams:
    ids = rng.integers(0, VOCAB, 3).tolist()
    choices: list[dict[str, Any]] = [
        {"allowed_token_ids": ids},
        {"logit_bias": {ids[0]: -100.0, ids[1]: 50.0}},
        {"bad_words_token_ids": [[ids[0]], ids]},
        {"repetition_penalty": 5.0, "frequency_penalty": 2.0, "presence_penalty": 2.0},
        {"min_tokens": 5, "stop_token_ids": ids},
        {"temperature": 0.0, "logprobs": 3},
        {"top_k": 1, "top_p": 0.1, "min_p": 0.9},
    ]
    return SamplingParams(**{"max_tokens": 64, **choices[rng.integers(len(choices))]})
