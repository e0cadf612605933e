"""`vllm bench latency`: how long one batch takes from prompts to the last token."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vllm.benchmarks import report
from vllm.benchmarks.command import parse
from vllm.config.flags import STR, flag, later
from vllm.exceptions import ConfigError
from vllm.inputs import TokensPrompt
from vllm.sampling_params import BeamSearchParams, SamplingParams

PERCENTILES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True)
class LatencyArgs:
    """The batch and how often it runs."""

    input_len: int = flag(32, "tokens per prompt")
    output_len: int = flag(128, "tokens to generate per prompt")
    batch_size: int = flag(8, "prompts at once")
    n: int = flag(1, "answers per prompt, or beams with --use-beam-search")
    use_beam_search: bool = flag(False, "beam search instead of sampling")
    num_iters_warmup: int = flag(10, "runs that are not measured")
    num_iters: int = flag(30, "runs that are measured")
    profile: bool = later(False, "profiling")
    output_json: str | None = flag(None, "file for the results", kind=STR)
    disable_detokenize: bool = flag(False, "token ids only, no text")


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    args, engine = parse("latency", LatencyArgs, sys.argv[1:] if argv is None else argv)
    if min(args.input_len, args.output_len, args.batch_size, args.n, args.num_iters) < 1:
        raise ConfigError("Lengths, sizes and --num-iters must be 1 or more.")
    from tqdm import tqdm

    from vllm.entrypoints.llm import LLM

    llm = LLM(**{"enable_prefix_caching": False, **engine})
    run = _runner(llm, args)
    for _ in tqdm(range(args.num_iters_warmup), desc="Warmup iterations"):
        run()
    latencies = []
    for _ in tqdm(range(args.num_iters), desc="Bench iterations"):
        start = time.perf_counter()
        run()
        latencies.append(time.perf_counter() - start)
    percentiles = {q: report.percentile(latencies, q) for q in PERCENTILES}
    print(f"Avg latency: {report.mean(latencies)} seconds")
    for q, value in percentiles.items():
        print(f"{q}% percentile latency: {value} seconds")
    if args.output_json:
        results = {
            "avg_latency": report.mean(latencies),
            "latencies": latencies,
            "percentiles": {str(q): value for q, value in percentiles.items()},
        }
        report.write_json(args.output_json, results)


def _runner(llm: Any, args: LatencyArgs) -> Callable[[], object]:
    """One call of it generates one batch."""
    vocab_size = llm.get_tokenizer().vocab_size
    ids = np.random.default_rng(0).integers(vocab_size, size=(args.batch_size, args.input_len))
    prompts = [TokensPrompt(prompt_token_ids=row.tolist()) for row in ids]
    if args.use_beam_search:
        beams = BeamSearchParams(beam_width=args.n, max_tokens=args.output_len, ignore_eos=True)
        return lambda: llm.beam_search(prompts, beams)
    params = SamplingParams(
        n=args.n,
        temperature=1.0,
        top_p=1.0,
        ignore_eos=True,
        max_tokens=args.output_len,
        detokenize=not args.disable_detokenize,
    )
    return lambda: llm.generate(prompts, params, use_tqdm=False)


if __name__ == "__main__":
    from vllm.benchmarks.command import run_module

    run_module("latency", main)
