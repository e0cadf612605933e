"""Every kernel test runs on each ISA that this machine has."""

from collections.abc import Iterator

import pytest

from vllm.kernels import native


@pytest.fixture(params=native.isas())
def isa(request: pytest.FixtureRequest) -> str:
    """Selects an ISA for the test."""
    native.set_isa(request.param)
    return str(request.param)


@pytest.fixture(autouse=True)
def plain_settings() -> Iterator[None]:
    """Tests start with one thread and the best ISA, and say so if they want others."""
    native.set_num_threads(1)
    yield
    native.set_num_threads(1)
    native.set_isa(native.isas()[0])
