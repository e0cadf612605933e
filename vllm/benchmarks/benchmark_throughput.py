"""`vllm bench throughput`: how many requests and tokens per second a full queue gets done."""

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Any

from vllm.benchmarks import report
from vllm.benchmarks.command import parse
from vllm.benchmarks.datasets import DatasetArgs, Sample, load_samples
from vllm.config.flags import STR, flag, later
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams


@dataclass(frozen=True)
class ThroughputArgs(DatasetArgs):
    """The engine's way to run and the report."""

    backend: str = flag(
        "vllm",
        "what is measured: generate or chat",
        choices=("vllm", "vllm-chat"),
        missing=("hf", "mii"),
        feature="other engines",
    )
    n: int = flag(1, "answers per prompt")
    num_warmups: int = flag(0, "prompts that run first and are not measured")
    async_engine: bool = flag(False, "use AsyncLLM, as the server does")
    prequeue_requests: bool = later(False, "queueing before the engine runs")
    disable_detokenize: bool = flag(False, "token ids only, no text")
    lora_path: str | None = later(None, "LoRA adapters", kind=STR)
    lora_assignment: str | None = later(None, "LoRA adapters", kind=STR)
    profile: bool = later(False, "profiling")
    output_json: str | None = flag(None, "file for the results", kind=STR)


@dataclass(frozen=True, slots=True)
class Totals:
    """What was done in how long."""

    seconds: float
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    args, engine = parse("throughput", ThroughputArgs, sys.argv[1:] if argv is None else argv)
    from vllm.engine.arg_utils import EngineArgs
    from vllm.transformers_utils.tokenizer import get_tokenizer

    config = EngineArgs(**engine).create_engine_config("llm")
    model = config.model_config
    tokenizer = get_tokenizer(model.tokenizer_path, model.tokenizer_mode, model.tokenizer_revision)
    samples = load_samples(args, tokenizer, int(engine.get("seed", 0)))
    totals = (
        asyncio.run(_run_async(args, engine, samples))
        if args.async_engine
        else _run(args, engine, samples)
    )
    _show(args, totals)


def _run(args: ThroughputArgs, engine: dict[str, Any], samples: list[Sample]) -> Totals:
    from vllm.entrypoints.llm import LLM

    llm = LLM(**engine)

    def generate(part: list[Sample]) -> list[RequestOutput]:
        params = [_params(args, sample) for sample in part]
        if args.backend == "vllm-chat":
            chats = [[{"role": "user", "content": sample.text}] for sample in part]
            return llm.chat(chats, params)
        return llm.generate([_prompt(sample) for sample in part], params)

    if args.num_warmups:
        generate(samples[: args.num_warmups])
    start = time.perf_counter()
    outputs = generate(samples)
    return _totals(time.perf_counter() - start, outputs)


async def _run_async(
    args: ThroughputArgs, engine_args: dict[str, Any], samples: list[Sample]
) -> Totals:
    from tqdm import tqdm

    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_args))
    try:
        await engine.wait_ready()
        for index, sample in enumerate(samples[: args.num_warmups]):
            await _last(engine, args, sample, f"warmup-{index}")
        with tqdm(total=len(samples), desc="Processed prompts") as bar:

            async def one(index: int, sample: Sample) -> RequestOutput:
                output = await _last(engine, args, sample, str(index))
                bar.update()
                return output

            start = time.perf_counter()
            outputs = await asyncio.gather(*(one(i, s) for i, s in enumerate(samples)))
            return _totals(time.perf_counter() - start, outputs)
    finally:
        engine.shutdown()


async def _last(engine: Any, args: ThroughputArgs, sample: Sample, name: str) -> RequestOutput:
    stream = engine.generate(_prompt(sample), _params(args, sample), name)
    outputs: list[RequestOutput] = [output async for output in stream]
    return outputs[-1]


def _params(args: ThroughputArgs, sample: Sample) -> SamplingParams:
    return SamplingParams(
        n=args.n,
        temperature=1.0,
        top_p=1.0,
        ignore_eos=True,
        max_tokens=sample.output_len,
        detokenize=not args.disable_detokenize,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _prompt(sample: Sample) -> TokensPrompt:
    return TokensPrompt(prompt_token_ids=sample.token_ids)


def _totals(seconds: float, outputs: list[RequestOutput]) -> Totals:
    return Totals(
        seconds=seconds,
        num_requests=len(outputs),
        num_prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
        num_output_tokens=sum(len(c.token_ids) for output in outputs for c in output.outputs),
    )


def _show(args: ThroughputArgs, totals: Totals) -> None:
    num_tokens = totals.num_prompt_tokens + totals.num_output_tokens
    per_s = 1.0 / totals.seconds
    print(
        f"Throughput: {totals.num_requests * per_s:.2f} requests/s, "
        f"{num_tokens * per_s:.2f} total tokens/s, "
        f"{totals.num_output_tokens * per_s:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {totals.num_prompt_tokens}")
    print(f"Total num output tokens:  {totals.num_output_tokens}")
    if args.output_json:
        results = {
            "elapsed_time": totals.seconds,
            "num_requests": totals.num_requests,
            "total_num_tokens": num_tokens,
            "requests_per_second": totals.num_requests * per_s,
            "tokens_per_second": num_tokens * per_s,
            "output_tokens_per_second": totals.num_output_tokens * per_s,
        }
        report.write_json(args.output_json, results)


if __name__ == "__main__":
    from vllm.benchmarks.command import run_module

    run_module("throughput", main)
