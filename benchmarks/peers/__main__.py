"""Compare engines on one model: `python -m benchmarks.peers --model FILE --llama-server PATH`.

Each round starts every engine in turn (A, B, A, B ...), so that a machine whose speed drifts
favours nobody. Figures are medians over rounds; ratios are ours / theirs for rates and
theirs / ours for times, so that more than 1 always means that this engine is better.
"""

import argparse
import asyncio
import json
import statistics
from collections import defaultdict
from pathlib import Path

from benchmarks.peers.client import complete
from benchmarks.peers.servers import OURS, Engine, llama_cpp, running
from benchmarks.peers.workloads import WORKLOADS

Figures = dict[str, list[float]]


def main() -> None:
    """Run the chosen workloads and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a GGUF file, given to every engine")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server binary")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    engines = [OURS]
    if args.llama_server:
        engines.append(llama_cpp(args.llama_server))
    else:
        print("llama.cpp: missing (pass --llama-server)")
    figures: dict[str, Figures] = {engine.name: defaultdict(list) for engine in engines}
    for seed in range(args.rounds):
        for engine in engines:
            _measure(engine, args, seed, figures[engine.name])
    _report(figures)
    if args.output_json:
        args.output_json.write_text(json.dumps(figures, indent=1))


def _measure(engine: Engine, args: argparse.Namespace, seed: int, figures: Figures) -> None:
    with running(engine, args.model, args.port) as server:
        first = asyncio.run(complete(args.port, [1000, 1001, 1002], 1, "m"))
        figures["start to first token s"].append(server.start_s + first.ttft)
        for name in args.workloads:
            for key, value in asyncio.run(WORKLOADS[name].run(args.port, seed)).items():
                figures[key].append(value)
                print(f"round {seed} {engine.name:10} {key:28} {value:9.2f}", flush=True)
        figures["peak memory MB"].append(server.peak_memory_mb())


def _report(figures: dict[str, Figures]) -> None:
    names = list(figures)
    print("\n| figure | " + " | ".join(names) + " | ratio |\n|---|" + "---:|" * (len(names) + 1))
    for key in figures[names[0]]:
        medians = [statistics.median(figures[name][key]) for name in names]
        cells = " | ".join(f"{value:.2f}" for value in medians)
        print(f"| {key} | {cells} | {_ratio(key, medians)} |")


def _ratio(key: str, medians: list[float]) -> str:
    if len(medians) < 2:
        return ""
    smaller_is_better = key.endswith((" s", " MB"))
    ratio = medians[1] / medians[0] if smaller_is_better else medians[0] / medians[1]
    return f"{ratio:.2f}"


if __name__ == "__main__":
    main()
