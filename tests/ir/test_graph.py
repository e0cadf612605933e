"""What a graph refuses, and how it reads as text."""

import pytest

from tests.ir.toys import branch_graph, weight
from vllm.ir.graph import Graph
from vllm.ir.values import Buffer, Const, Node, Weight

X = Buffer("x", "tokens", 64).all
Y = Buffer("y", "tokens", 32).all
ROWS = Buffer("r", "logits", 64).all
Q = Buffer("q", "tokens", 64, "q8").all


@pytest.mark.parametrize(
    ("op", "args", "message"),
    [
        ("linear", {"w": weight("w", 32), "out": Y}, "exactly one of x and x_q8"),
        ("linear", {"w": weight("w", 32), "x": X, "x_q8": Q, "out": Y}, "exactly one"),
        ("linear", {"w": weight("w", 32, 48), "x": X, "out": Y}, "input columns is 64, must be 48"),
        ("linear", {"w": weight("w", 31), "x": X, "out": Y}, "out columns is 32, must be 31"),
        ("linear", {"w": weight("w", 32), "x": Q, "out": Y}, "x must be f32"),
        ("linear", {"w": weight("w", 64), "x": ROWS, "out": X}, "mixes token and logits rows"),
        ("linear", {"w": X, "x": X, "out": Y}, "w can't be"),
        ("linear", {"x": X, "out": Y}, "needs w"),
        ("linear", {"w": weight("w", 32), "x": X, "out": Y, "beta": 2.0}, "no argument beta"),
        (
            "linear",
            {"w": weight("w", 32), "x": X, "out": Y, "bias": Const("b", (31,))},
            r"bias is \(31,\), must be \(32,\)",
        ),
        ("norm", {"x": X, "eps": 1e-6, "out": Y}, "out columns is 32, must be 64"),
        ("act", {"x": X, "act": "tanh", "out": Y}, "act is tanh, must be one of silu"),
        ("act", {"x": X, "gated": False, "out": Y}, "out columns is 64, must be 32|must be 64"),
        ("add", {"a": X, "b": Y, "out": X}, "b columns is 32, must be 64"),
        (
            "rope_cache",
            {"qkv": X, "num_heads": 4, "num_kv_heads": 3, "head_dim": 8, "layer": 0},
            "qkv columns is 64, must be 80",
        ),
        (
            "attention",
            {"q": X, "num_heads": 8, "num_kv_heads": 3, "head_dim": 8, "layer": 0, "scale": 1.0,
             "out": X},
            "8 heads can't share 3 KV heads",
        ),
    ],
)  # fmt: skip
def test_wrong_nodes_are_refused(op: str, args: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graph().add(op, **args)


def test_columns_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"x has 64 columns, not 40\+32"):
        X.buffer.columns(40, 32)


def test_reading_before_writing() -> None:
    graph = Graph()
    graph.add("linear", w=weight("w", 32), x=X, out=Y)
    with pytest.raises(ValueError, match=r"node 0 .*x is read before column 0 is written"):
        graph.check()


def test_reading_a_column_that_was_not_written() -> None:
    graph = Graph()
    ids = Weight("e", (), 32)
    graph.add("embedding", w=ids, out=X.buffer.columns(0, 32))
    graph.add("add", a=X, b=X, out=X)
    with pytest.raises(ValueError, match="read before column 32 is written"):
        graph.check()


def test_dump_is_readable() -> None:
    lines = branch_graph().dump().splitlines()
    assert lines[0] == "hidden: tokens x 64 f32"
    assert "   0 embedding  w=embed<100x64>, out=hidden, scale=2.0" in lines
    assert "   3 act        act=silu, gated=True, x=0.up, out=0.act" in lines
    assert lines[-1] == "  12 linear     w=head<40x64>, x=sampled, out=logits"
    assert branch_graph().head == 11


def test_absent_arguments_are_not_kept() -> None:
    node = Node("norm", {"x": X, "out": X})
    assert dict(node.with_args(out=None, out_q8=Q).args) == {"x": X, "out_q8": Q}
