"""Sampling functions against their references, published vectors and the laws of chance."""

from typing import Any

import numpy as np
import pytest

from vllm.kernels import native
from vllm.kernels import reference_sampling as reference

VOCABS = [1, 5, 127, 128, 129, 1000, 49152]


def random_logits(rows: int, vocab: int, seed: int = 0, scale: float = 3.0) -> np.ndarray:
    rng = np.random.default_rng([seed, rows, vocab])
    return (rng.standard_normal((rows, vocab)) * scale).astype(np.float32)


def ragged(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return offsets, np.array([x for row in lists for x in row], np.int32)


def column(*values: float, dtype: type = np.float32) -> np.ndarray:
    return np.array(values, dtype)


# ---- argmax and NaN ---------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", VOCABS)
def test_argmax(isa: str, vocab: int) -> None:
    logits = random_logits(5, vocab)
    np.testing.assert_array_equal(native.argmax(logits), logits.argmax(-1))


def test_argmax_takes_the_first_of_equal_ones(isa: str) -> None:
    logits = np.zeros((3, 1000), np.float32)
    logits[1, [700, 701, 999]] = 2
    logits[2, 3:] = -np.inf
    np.testing.assert_array_equal(native.argmax(logits), [0, 700, 0])


@pytest.mark.parametrize("where", [0, 6, 127, 128, 997, 999])
def test_rows_without_an_answer_are_told(isa: str, where: int) -> None:
    logits = random_logits(4, 1000)
    logits[0, where] = np.nan
    logits[1] = -np.inf
    logits[2, where] = np.inf
    best = int(logits[3].argmax())
    np.testing.assert_array_equal(native.argmax(logits), [-1, -1, -1, best])
    np.testing.assert_array_equal(reference.argmax(logits), [-1, -1, -1, best])
    drawn = native.sample(
        logits, column(1, 1, 1, 0), column(0, 5, 0, 0, dtype=np.int32), column(1, 1, 0.5, 1), None,
        np.zeros(4, np.int64), np.zeros(4, np.int64),
    )  # fmt: skip
    np.testing.assert_array_equal(drawn, [-1, -1, -1, best])


def test_rows_may_be_strided(isa: str) -> None:
    wide = random_logits(4, 300)
    part = wide[:, :77]
    np.testing.assert_array_equal(native.argmax(part), part.argmax(-1))
    native.mask_banned(part, *ragged([[76], [0], [], []]))
    assert wide[0, 76] == -np.inf
    assert np.isfinite(wide[:, 77:]).all()


# ---- edits ------------------------------------------------------------------------------------


def test_mask_allowed_and_banned(isa: str) -> None:
    logits = random_logits(4, 500)
    lists = ragged([[3, 499, 3], [], [0], list(range(100, 200))])
    for name in ("mask_allowed", "mask_banned"):
        mine = logits.copy()
        getattr(native, name)(mine, *lists)
        np.testing.assert_array_equal(mine, getattr(reference, name)(logits, *lists))


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000])
def test_bitmask(isa: str, vocab: int) -> None:
    logits = random_logits(5, vocab)
    rng = np.random.default_rng(1)
    words = -(-vocab // 32)
    bitmask = rng.integers(-(2**31), 2**31, (3, words)).astype(np.int32)
    bitmask[1] = -1
    bitmask[2, words // 2 :] = 0
    rows = np.array([4, 0, 2], np.int32)
    mine = logits.copy()
    native.apply_bitmask(mine, rows, bitmask)
    np.testing.assert_array_equal(mine, reference.apply_bitmask(logits, rows, bitmask))


def test_bias(isa: str) -> None:
    logits = random_logits(3, 100)
    offsets, ids = ragged([[5, 99], [], [0]])
    values = column(100, -100, 0.5)
    mine = logits.copy()
    native.add_bias(mine, offsets, ids, values)
    np.testing.assert_array_equal(mine, reference.add_bias(logits, offsets, ids, values))


@pytest.mark.parametrize("threads", [1, 2])
def test_penalties(isa: str, threads: int) -> None:
    native.set_num_threads(threads)
    logits = random_logits(5, 1000)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 1000, n).tolist() for n in (50, 0, 3, 400, 10)]
    outputs = [rng.integers(0, 30, n).tolist() for n in (0, 40, 100, 7, 10)]
    args = (
        column(1.3, 1, 0.7, 2, 1), column(0, 0.5, -0.5, 1, 0), column(0, 1.5, 0.25, -2, 0),
        *ragged(prompts), *ragged(outputs),
    )  # fmt: skip
    mine = logits.copy()
    native.apply_penalties(mine, *args)
    np.testing.assert_allclose(mine, reference.apply_penalties(logits, *args), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(mine[4], logits[4])


# ---- truncation -------------------------------------------------------------------------------

TRUNCATIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"top_k": 20},
    {"top_k": 999},
    {"top_k": 10**9},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"top_p": 0.9999},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.8},
    {"top_k": 2000, "top_p": 0.99},
    {"min_p": 0.02, "top_p": 0.7},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.05},
]


def columns(rows: int, truncation: dict[str, Any]) -> dict[str, Any]:
    dtypes = {"top_k": np.int32, "top_p": np.float32, "min_p": np.float32}
    return {name: np.full(rows, value, dtypes[name]) for name, value in truncation.items()}


@pytest.mark.parametrize("vocab", [3, 128, 1000, 30000])
@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_what_remains(isa: str, vocab: int, truncation: dict[str, Any], temperature: float) -> None:
    logits = random_logits(3, vocab)
    args = (np.full(3, temperature, np.float32),)
    mine = logits.copy()
    native.process_logits(mine, *args, **columns(3, truncation))
    expected = reference.process_logits(logits, *args, **columns(3, truncation))
    kept, wanted = np.isfinite(mine), np.isfinite(expected)
    # Rounding of a sum may move the border of top-p by one improbable token.
    differs = kept != wanted
    assert (differs.sum(-1) <= 1).all()
    shares = np.exp(reference.log_softmax(logits / temperature))
    assert (shares[differs] < 1e-4).all()
    np.testing.assert_allclose(mine[~differs], expected[~differs], rtol=1e-6)


def test_ties_at_the_borders(isa: str) -> None:
    """Top-k keeps all that equal the k-th; top-p the lowest ids of those equal at its border."""
    logits = np.array([[1, 2, 2, 2, 3, 0]], np.float32)
    mine = logits.copy()
    native.process_logits(mine, column(1), column(2, dtype=np.int32))
    np.testing.assert_array_equal(np.isfinite(mine), [[False, True, True, True, True, False]])
    mine = np.zeros((1, 10), np.float32)
    native.process_logits(mine, column(1), None, column(0.35))
    np.testing.assert_array_equal(np.isfinite(mine[0]), [True] * 4 + [False] * 6)


def test_masked_tokens_stay_out(isa: str) -> None:
    logits = random_logits(1, 1000)
    logits[0, 100:] = -np.inf
    for truncation in TRUNCATIONS:
        mine = logits.copy()
        native.process_logits(mine, column(1.5), **columns(1, truncation))
        assert (mine[0, 100:] == -np.inf).all()
        assert np.isfinite(mine[0]).any()


def test_temperature_zero_leaves_the_row(isa: str) -> None:
    logits = random_logits(2, 100)
    mine = logits.copy()
    native.process_logits(mine, column(0, 2), column(5, 5, dtype=np.int32))
    np.testing.assert_array_equal(mine[0], logits[0])
    assert np.isfinite(mine[1]).sum() == 5


# ---- draws ------------------------------------------------------------------------------------

PHILOX_VECTORS = [
    # Known answers for philox4x32 with 10 rounds, published with Random123.
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), PHILOX_VECTORS)
def test_philox_known_answers(counter: list[int], key: list[int], answer: list[int]) -> None:
    assert list(native.philox4x32(counter, key)) == answer
    assert list(reference.philox4x32(tuple(counter), tuple(key))) == answer


def test_uniforms_belong_to_seed_and_position() -> None:
    seeds = np.array([0, 1, -1, 2**62, -(2**63), 7], np.int64)
    positions = np.array([0, 1, 2**40, 3, 4, 5], np.int64)
    mine = native.philox_uniform(seeds, positions)
    np.testing.assert_array_equal(mine, reference.philox_uniform(seeds, positions))
    assert len(set(mine.tolist())) == 6
    many = native.philox_uniform(np.zeros(10**5, np.int64), np.arange(10**5))
    assert many.min() >= 0 and many.max() < 1
    assert abs(many.mean() - 0.5) < 0.005


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_draws_follow_the_reference(isa: str, vocab: int, truncation: dict[str, Any]) -> None:
    rows = 40
    logits = random_logits(rows, vocab)
    args = (np.full(rows, 0.8, np.float32),)
    truncation = {"top_k": None, "top_p": None, "min_p": None, **columns(rows, truncation)}
    keys = (np.arange(rows, dtype=np.int64) - 3, np.arange(rows, dtype=np.int64) * 7)
    mine = native.sample(logits, *args, **truncation, seeds=keys[0], positions=keys[1])
    expected = reference.sample(logits, *args, **truncation, seeds=keys[0], positions=keys[1])
    np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [({}, 12), ({"top_k": 5}, 5), ({"top_p": 0.8}, None), ({"min_p": 0.2}, None)],
    ids=str,
)
def test_frequencies_match_probabilities(
    isa: str, truncation: dict[str, Any], kept: int | None
) -> None:
    """Chi-square of 20,000 draws; with fixed seeds the outcome is always the same."""
    draws, vocab = 20_000, 12
    logits = random_logits(1, vocab, scale=1.0)
    truncated = reference.process_logits(logits, column(0.7), **columns(1, truncation))
    probabilities = np.exp(reference.log_softmax(truncated)[0].astype(np.float64))
    live = probabilities > 0
    assert kept is None or live.sum() == kept
    tokens = native.sample(
        np.repeat(logits, draws, axis=0),
        np.full(draws, 0.7, np.float32),
        **{"top_k": None, "top_p": None, "min_p": None, **columns(draws, truncation)},
        seeds=np.full(draws, 42, np.int64),
        positions=np.arange(draws, dtype=np.int64),
    )
    counts = np.bincount(tokens, minlength=vocab)
    assert (counts[~live] == 0).all()
    wanted = draws * probabilities[live]
    chi_square = float(((counts[live] - wanted) ** 2 / wanted).sum())
    freedom = int(live.sum()) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_a_row_is_drawn_alone_as_in_a_batch(isa: str, truncation: dict[str, Any]) -> None:
    rows = 7
    logits = random_logits(rows, 3000)
    seeds, positions = np.arange(rows, dtype=np.int64), np.full(rows, 9, np.int64)
    full = {"top_k": None, "top_p": None, "min_p": None, **columns(rows, truncation)}
    temperature = np.linspace(0, 2, rows).astype(np.float32)

    def draw(part: slice) -> np.ndarray:
        cut = {name: None if x is None else x[part] for name, x in full.items()}
        return native.sample(
            logits[part], temperature[part], **cut, seeds=seeds[part], positions=positions[part]
        )

    alone = [int(draw(slice(r, r + 1))[0]) for r in range(rows)]
    native.set_num_threads(2)
    np.testing.assert_array_equal(draw(slice(None)), alone)


# ---- log-probabilities ------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("top_n", [0, 1, 5, 200, -1])
def test_logprobs(isa: str, vocab: int, top_n: int) -> None:
    rows = 4
    logits = random_logits(rows, vocab)
    logits[1, : vocab // 2] = -np.inf
    logits[2] = np.round(logits[2])  # many ties
    tokens = np.random.default_rng(0).integers(0, vocab, rows).astype(np.int32)
    top_n = vocab if top_n == -1 else min(top_n, vocab)
    mine = native.logprobs(logits, tokens, top_n)
    expected = reference.logprobs(logits, tokens, top_n)
    np.testing.assert_allclose(mine[0], expected[0], rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(mine[1], expected[1])
    np.testing.assert_array_equal(mine[2], expected[2])
    np.testing.assert_allclose(mine[3], expected[3], rtol=2e-6, atol=2e-6)


def test_logprobs_of_extreme_logits(isa: str) -> None:
    logits = np.full((2, 1000), -1e4, np.float32)
    logits[0, 7] = 1e4
    logits[1, :500] = 3e38
    values, ranks, top, _ = native.logprobs(logits, np.array([7, 499], np.int32), 2)
    np.testing.assert_allclose(values, [0, -np.log(500)], rtol=1e-6)
    np.testing.assert_array_equal(ranks, [1, 500])
    np.testing.assert_array_equal(top, [[7, 0], [0, 1]])


def test_logprobs_of_a_row_with_nan_are_nan(isa: str) -> None:
    logits = random_logits(1, 300)
    logits[0, 100] = np.nan
    values, _, _, top_values = native.logprobs(logits, np.array([7], np.int32), 5)
    assert np.isnan(values).all() and np.isnan(top_values).all()


def test_token_logprobs(isa: str) -> None:
    logits = random_logits(4, 3000)
    lists = ragged([[5, 2999], [], [0, 0, 17], [1]])
    mine, expected = native.token_logprobs(logits, *lists), reference.token_logprobs(logits, *lists)
    np.testing.assert_allclose(mine[0], expected[0], rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(mine[1], expected[1])


# ---- refusals ---------------------------------------------------------------------------------

ONE = np.zeros(1, np.int64)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x: native.argmax(x[0]), "logits"),
        (lambda x: native.argmax(x.astype(np.float64)), "logits"),
        (lambda x: native.argmax(np.repeat(x, 3, axis=0).T), "logits"),
        (lambda x: native.argmax(x[:, :0]), "logits"),
        (lambda x: native.mask_banned(x, *ragged([[9]])), "ids"),
        (lambda x: native.mask_banned(x, *ragged([[-1]])), "ids"),
        (lambda x: native.mask_banned(x, *ragged([[1], [2]])), "offsets"),
        (lambda x: native.mask_banned(x, np.array([0, 5]), np.zeros(1, np.int32)), "ids"),
        (lambda x: native.mask_banned(x, np.array([1, 1]), np.zeros(1, np.int32)), "offsets"),
        (lambda x: native.apply_bitmask(x, np.zeros(1, np.int32), np.zeros((1, 2), np.int32)),
         "bitmask"),
        (lambda x: native.apply_bitmask(x, np.ones(1, np.int32), np.zeros((1, 1), np.int32)),
         "rows"),
        (lambda x: native.apply_bitmask(x, np.zeros(2, np.int32), np.zeros((2, 1), np.int32)),
         "rows"),
        (lambda x: native.sample(x, column(-1), None, None, None, ONE, ONE), "temperature"),
        (lambda x: native.sample(x, column(np.nan), None, None, None, ONE, ONE), "temperature"),
        (lambda x: native.sample(x, column(1), None, column(0), None, ONE, ONE), "top_p"),
        (lambda x: native.sample(x, column(1), None, None, column(2), ONE, ONE), "min_p"),
        (lambda x: native.sample(x, column(1, 1), None, None, None, ONE, ONE), "temperature"),
        (lambda x: native.sample(x, column(1), column(-1, dtype=np.int32), None, None, ONE, ONE),
         "top_k"),
        (lambda x: native.logprobs(x, np.array([9], np.int32), 1), "token_ids"),
        (lambda x: native.logprobs(x, np.array([0], np.int32), 10), "top_n"),
        (lambda x: native.logprobs(x, np.array([0], np.int64), 1), "token_ids"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(call: Any, named: str) -> None:
    logits = random_logits(1, 9)
    before = logits.copy()
    with pytest.raises(ValueError, match=named):
        call(logits)
    np.testing.assert_array_equal(logits, before)


def test_no_rows_is_fine() -> None:
    empty = np.zeros((0, 9), np.float32)
    assert native.argmax(empty).shape == (0,)
    assert native.logprobs(empty, np.zeros(0, np.int32), 3)[3].shape == (0, 3)
