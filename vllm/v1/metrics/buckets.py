"""Upper bounds of the histograms, by family; --custom-histogram-buckets replaces whole families.

Invariant: bounds are finite and rise strictly, so every observation has one bucket.
"""

import math
from collections.abc import Iterator, Mapping

from vllm.exceptions import ConfigError

BUCKETS: dict[str, tuple[float, ...]] = {
    "request_latency": (
        0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920,
        7680,
    ),
    "time_to_first_token": (
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
        40, 80, 160, 640, 2560,
    ),
    "inter_token_latency": (
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
        80,
    ),
    "iteration_tokens": (1, 8, *(2**k for k in range(4, 15))),
    "request_tokens": (),
    "request_params_n": (1, 2, 5, 10, 20),
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
}  # fmt: skip
"""`request_tokens` depends on max_model_len."""


def bucket_families(
    max_model_len: int, custom: Mapping[str, object] | None = None
) -> dict[str, tuple[float, ...]]:
    """Bounds of every family. Raises ConfigError for a `custom` family that can't be used."""
    families = {**BUCKETS, "request_tokens": tuple(_one_two_five(max_model_len))}
    for family, bounds in (custom or {}).items():
        if family not in families:
            raise ConfigError(
                f"custom_histogram_buckets names {family!r}; families are {', '.join(families)}."
            )
        families[family] = _checked(family, bounds)
    return families


def _one_two_five(limit: int) -> Iterator[int]:
    scale = 1
    while scale <= limit:
        yield from (scale * m for m in (1, 2, 5) if scale * m <= limit)
        scale *= 10


def _checked(family: str, bounds: object) -> tuple[float, ...]:
    numbers = bounds if isinstance(bounds, list) else []
    checked = [float(n) for n in numbers if isinstance(n, (int, float)) and math.isfinite(n)]
    if not checked or len(checked) != len(numbers) or checked != sorted(set(checked)):
        raise ConfigError(
            f"custom_histogram_buckets of {family!r} must be a list of one or more rising numbers."
        )
    return tuple(checked)
