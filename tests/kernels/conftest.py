"""Every kernel test runs on each ISA that this machine has."""

from collections.abc import Iterator

import pytest

from vllm.kernels import native


@pytest.fixture(params=native.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Selects an ISA for the test; the best one is selected again afterwards."""
    native.set_isa(request.param)
    yield request.param
    native.set_isa(native.isas()[0])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests start with one thread and say so if they want more."""
    native.set_num_threads(1)
    yield
    native.set_num_threads(1)
