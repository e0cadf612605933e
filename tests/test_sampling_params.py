"""Values at and beyond the limits: refused by name, or moved to where arithmetic is safe."""

from typing import Any

import numpy as np
import pytest

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", 5),
        ("stop", ""),
        ("stop", [1]),
        ("stop", {"a": 1}),
        ("stop", list("abcde")),
        ("bad_words", "the"),
        ("bad_words", [""]),
        ("stop_token_ids", 5),
        ("stop_token_ids", [[1]]),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [2**63]),
        ("allowed_token_ids", {1: 2}),
        ("allowed_token_ids", []),
        ("logprob_token_ids", list(range(129))),
        ("logit_bias", [1]),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {" 5": 1}),
        ("logit_bias", {"1_0": 1}),
        ("logit_bias", {"05": 1}),
        ("logit_bias", {"\u0665": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", {True: 1}),
        ("logit_bias", {5: 100.5}),
        ("logit_bias", {5: "1"}),
        ("temperature", 10**400),
        ("temperature", float("nan")),
        ("top_p", None),
        ("repetition_penalty", float("inf")),
        ("ignore_eos", "no"),
        ("detokenize", None),
        ("extra_args", 5),
        ("output_kind", 7),
        ("seed", "x"),
        ("n", 2.0),
        ("top_k", 2**63),
    ],
)
def test_what_no_request_may_hold_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError, match=field) as raised:
        SamplingParams(**{field: value})
    assert raised.value.param == field
    assert len(raised.value.message) < 250


def test_a_count_is_not_shown_as_the_value() -> None:
    with pytest.raises(VLLMValidationError, match="stop has 5 entries; at most 4 may be"):
        SamplingParams(stop=list("abcde"))


@pytest.mark.parametrize("value", [5e-324, 1e-45, 1e-30, 1e30, 1e300])
def test_any_repetition_penalty_keeps_float32_logits_finite(value: float) -> None:
    penalty = np.float32(SamplingParams(repetition_penalty=value).repetition_penalty)
    logits = np.array([-1e4, 0.0, 1e4], np.float32)
    coldest = np.float32(SamplingParams(temperature=1e-4).temperature)
    assert np.isfinite(logits * penalty / coldest).all()
    assert np.isfinite(logits / penalty / coldest).all()


@pytest.mark.parametrize("value", [5e-324, 1e-50, 1e-30])
def test_any_top_p_is_above_0_as_float32(value: float) -> None:
    assert np.float32(SamplingParams(top_p=value).top_p) > 0


def test_lists_may_come_as_tuples_or_sets() -> None:
    params = SamplingParams(stop=("a",), allowed_token_ids=(1, 2), stop_token_ids={3})  # type: ignore[arg-type]
    assert (params.stop, params.allowed_token_ids, params.stop_token_ids) == (["a"], [1, 2], [3])
