"""The servers of the HTTP tests."""

from tests.entrypoints.conftest import make_server_on_port, make_serving

__all__ = ["make_server_on_port", "make_serving"]
