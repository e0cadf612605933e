"""The numbers of `vllm bench serve`, computed by hand."""

from vllm.benchmarks.serve_metrics import RequestResult, RunFacts, summarize, table


def result(start: float, times: list[float], tokens: int, prompt: int = 10) -> RequestResult:
    """A request whose parts arrive at these times."""
    one = RequestResult(prompt, start)
    last = start
    for now in times:
        one.note(now, last)
        last = now
    one.num_output_tokens = tokens
    return one


FACTS = RunFacts(duration=4.0, max_concurrency=2, request_rate=float("inf"))
RESULTS = [
    result(100.0, [100.5, 100.7, 101.0], 3),
    result(100.2, [101.2, 101.4], 2, 20),
    result(103.0, [103.1], 1, 5),
]


def test_one_request() -> None:
    one = RESULTS[0]
    assert (round(one.ttft, 6), round(one.latency, 6)) == (0.5, 1.0)
    assert [round(value, 6) for value in one.itls] == [0.2, 0.3]
    assert round(one.tpot, 6) == 0.25  # (1.0 - 0.5) / (3 - 1)
    assert RESULTS[2].values("tpot") == []


def test_summary() -> None:
    failed = RequestResult(10, 100.0, error="503")
    metrics = ["ttft", "tpot", "itl", "e2el"]
    summary = summarize([*RESULTS, failed], FACTS, metrics, [50.0, 99.9], {"ttft": 600.0})
    rounded = {k: round(v, 4) for k, v in summary.items() if isinstance(v, float)}
    assert (summary["completed"], summary["failed"]) == (3, 1)
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (35, 6)
    assert rounded["request_throughput"] == 0.75
    assert rounded["output_throughput"] == 1.5
    assert rounded["total_token_throughput"] == 10.25
    assert rounded["request_goodput"] == 0.5  # two of three within 600 ms, in 4 s
    assert rounded["mean_ttft_ms"] == 533.3333  # (500 + 1000 + 100) / 3
    assert rounded["median_ttft_ms"] == rounded["p50_ttft_ms"] == 500.0
    assert rounded["mean_tpot_ms"] == 225.0  # (250 + 200) / 2
    assert rounded["mean_itl_ms"] == 233.3333  # (200 + 300 + 200) / 3
    assert rounded["mean_e2el_ms"] == 766.6667  # (1000 + 1200 + 100) / 3
    assert summary["max_concurrent_requests"] == 2
    assert "p99.9_ttft_ms" in summary
    # Second 0 of the run: two parts of the first (at 0.5 and 0.7 s); second 1: 1.0, 1.2, 1.4.
    assert rounded["max_output_tokens_per_s"] == 3.0


def test_table() -> None:
    summary = summarize(RESULTS, FACTS, ["ttft"], [99.0], {})
    lines = table(summary, ["ttft"], [99.0])
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert "Successful requests:                     3" in lines
    assert "Maximum request concurrency:             2" in lines
    assert "Mean TTFT (ms):                          533.33" in lines
    assert any(line.startswith("P99 TTFT (ms):") for line in lines)
    assert not any("ITL" in line for line in lines)


def test_nothing_succeeded() -> None:
    failed = RequestResult(10, 0.0, error="x")
    summary = summarize([failed], FACTS, ["ttft", "itl"], [99.0], {})
    assert summary["completed"] == 0
    assert summary["mean_ttft_ms"] == 0.0
    assert table(summary, ["ttft", "itl"], [99.0])
