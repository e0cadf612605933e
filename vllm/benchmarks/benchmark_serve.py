"""`vllm bench serve`: sends requests to a running server and measures when the tokens arrive."""

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.benchmarks import report
from vllm.benchmarks.command import pairs
from vllm.benchmarks.datasets import DatasetArgs, Sample, load_samples
from vllm.benchmarks.serve_metrics import METRICS, RequestResult, RunFacts, summarize, table
from vllm.config.flags import FLOAT, INT, JSON, STR, STR_LIST, flag, later, make_config
from vllm.engine.arg_parser import FlagParser, add_config
from vllm.entrypoints.http_client import HttpClient, HttpError
from vllm.exceptions import ConfigError

if TYPE_CHECKING:
    from vllm.transformers_utils.tokenizer import Tokenizer

_OTHER_BACKENDS = (
    "openai-responses", "openai-audio", "openai-embeddings", "openai-embeddings-chat",
    "openai-embeddings-clip", "openai-embeddings-vlm2vec", "infinity-embeddings",
    "infinity-embeddings-clip", "vllm-pooling", "vllm-rerank",
)  # fmt: skip
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
             "repetition_penalty")  # fmt: skip


@dataclass(frozen=True)
class ServeArgs(DatasetArgs):
    """The server, the load and the report."""

    backend: str = flag(
        "openai",
        "API to use",
        choices=("openai", "vllm", "openai-chat"),
        missing=_OTHER_BACKENDS,
        feature="this API",
    )
    base_url: str | None = flag(None, "address of the server", kind=STR)
    host: str = flag("127.0.0.1", "host of the server")
    port: int = flag(8000, "port of the server")
    endpoint: str | None = flag(
        None, "path of the API; default: /v1/completions or /v1/chat/completions", kind=STR
    )
    header: list[str] | None = flag(None, "KEY=VALUE headers of every request", kind=STR_LIST)
    api_key: str | None = flag(
        None, "key of the server; default: the variable OPENAI_API_KEY", kind=STR
    )
    model: str | None = flag(None, "name of the model; default: the server's first", kind=STR)
    served_model_name: str | None = flag(None, "name in requests, if it is not --model", kind=STR)
    tokenizer: str | None = flag(
        None, "folder, file or name of the tokenizer; default: the model's", kind=STR
    )
    tokenizer_mode: str = flag("auto", "how the tokenizer is read", choices=("auto", "hf"))
    seed: int = flag(0, "seed of prompts and arrival times")
    request_rate: float = flag(float("inf"), "requests per second; inf: all at once", kind=FLOAT)
    burstiness: float = flag(
        1.0, "shape of the times between requests: 1 Poisson, below burstier", kind=FLOAT
    )
    max_concurrency: int | None = flag(None, "most requests at the same time", kind=INT)
    ramp_up_strategy: str | None = flag(
        None, "how the request rate grows", kind=STR, choices=("linear", "exponential")
    )
    ramp_up_start_rps: int | None = flag(None, "request rate at the start", kind=INT)
    ramp_up_end_rps: int | None = flag(None, "request rate at the end", kind=INT)
    num_warmups: int = flag(0, "requests that run first and are not measured")
    ready_check_timeout_sec: int = flag(0, "seconds to wait for the server")
    ignore_eos: bool = flag(False, "generate the full length")
    temperature: float | None = flag(None, "sampling", kind=FLOAT)
    top_p: float | None = flag(None, "sampling", kind=FLOAT)
    top_k: int | None = flag(None, "sampling", kind=INT)
    min_p: float | None = flag(None, "sampling", kind=FLOAT)
    frequency_penalty: float | None = flag(None, "sampling", kind=FLOAT)
    presence_penalty: float | None = flag(None, "sampling", kind=FLOAT)
    repetition_penalty: float | None = flag(None, "sampling", kind=FLOAT)
    extra_body: dict[str, Any] | None = flag(None, "fields merged into every request", kind=JSON)
    chat_template_kwargs: dict[str, Any] | None = flag(
        None, "arguments of the chat template", kind=JSON
    )
    logprobs: int | None = flag(None, "logprobs per token to ask for", kind=INT)
    percentile_metrics: str = flag("ttft,tpot,itl", "metrics: ttft, tpot, itl, e2el")
    metric_percentiles: str = flag("99", "percentiles, comma-separated")
    goodput: list[str] | None = flag(
        None, "metric:milliseconds that a good request keeps", kind=STR_LIST
    )
    save_result: bool = flag(False, "write the result as JSON")
    save_detailed: bool = flag(False, "with the times of every request")
    append_result: bool = flag(False, "append to the file, one line per run")
    result_dir: str = flag(".", "folder of the result")
    result_filename: str | None = flag(None, "name of the result", kind=STR)
    output_json: str | None = flag(None, "path of the result, instead of the two above", kind=STR)
    metadata: list[str] | None = flag(None, "KEY=VALUE to put into the result", kind=STR_LIST)
    label: str | None = flag(None, "name of the run in the result", kind=STR)
    profile: bool = later(False, "profiling")
    lora_modules: list[str] | None = later(None, "LoRA adapters", kind=STR_LIST)
    request_id_prefix: str = flag("bench-", "first part of X-Request-Id")
    insecure: bool = flag(False, "do not check the server's certificate")
    disable_tqdm: bool = flag(False, "no progress bar")
    plot_timeline: bool = later(False, "plots")

    @property
    def is_chat(self) -> bool:
        """True for the chat API."""
        return self.backend == "openai-chat"

    @property
    def path(self) -> str:
        """Where requests go."""
        return self.endpoint or ("/v1/chat/completions" if self.is_chat else "/v1/completions")

    @property
    def metrics(self) -> list[str]:
        """The metrics to show, checked."""
        names = [name.strip() for name in self.percentile_metrics.split(",") if name.strip()]
        for name in names:
            if name not in METRICS:
                raise ConfigError(f"--percentile-metrics {name}: known are {', '.join(METRICS)}.")
        return names

    @property
    def percentiles(self) -> list[float]:
        """The percentiles to show, checked."""
        try:
            values = [float(word) for word in self.metric_percentiles.split(",")]
        except ValueError:
            values = [-1.0]
        if not all(0 <= value <= 100 for value in values):
            raise ConfigError("--metric-percentiles must be numbers from 0 to 100.")
        return values

    @property
    def goodput_limits(self) -> dict[str, float]:
        """Metric -> milliseconds."""
        words = [word.replace(":", "=", 1) for word in self.goodput or ()]
        limits = {}
        for name, value in pairs(words, "--goodput").items():
            if name not in METRICS or not value.replace(".", "", 1).isdecimal():
                raise ConfigError(f"--goodput {name}:{value} must be metric:milliseconds.")
            limits[name] = float(value)
        return limits


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = FlagParser(prog="vllm bench serve")
    add_config(parser, "Serve", ServeArgs)
    given = vars(parser.parse_args(sys.argv[1:] if argv is None else argv))
    args = make_config(ServeArgs, given)
    if args.request_rate <= 0 or args.burstiness <= 0:
        raise ConfigError("--request-rate and --burstiness must be greater than 0.")
    if args.ramp_up_strategy and not (args.ramp_up_start_rps and args.ramp_up_end_rps):
        raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps.")
    summary = asyncio.run(run(args))
    for line in table(summary, args.metrics, args.percentiles):
        print(line)
    _save(args, summary)


async def run(args: ServeArgs) -> dict[str, Any]:
    """One run: wait, warm up, measure."""
    metrics, percentiles, limits = args.metrics, args.percentiles, args.goodput_limits
    base = args.base_url or f"http://{args.host}:{args.port}"
    key = args.api_key or envs.environ.get("OPENAI_API_KEY")
    headers = pairs(args.header, "--header")
    client = HttpClient(base, api_key=key, headers=headers, verify=not args.insecure)
    card = await _wait_for_server(client, base, args.ready_check_timeout_sec)
    name = args.served_model_name or args.model or str(card["id"])
    tokenizer = _tokenizer(args, card)
    samples = load_samples(args, tokenizer, args.seed)
    load = _Load(client, args, name, tokenizer)
    first = await load.send(samples[0], "check")
    if not first.is_success:
        raise ConfigError(f"the first request failed: {first.error}")
    await asyncio.gather(*(load.send(s, f"warmup-{i}") for i, s in
                           enumerate(samples[: args.num_warmups])))  # fmt: skip
    start = time.perf_counter()
    results = await load.send_all(samples)
    facts = RunFacts(time.perf_counter() - start, args.max_concurrency, args.request_rate)
    await client.close()
    summary = summarize(results, facts, metrics, percentiles, limits)
    for error in sorted({one.error for one in results if one.error})[:5]:
        print(f"Failed: {error}", file=sys.stderr)
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": args.backend,
        "label": args.label,
        "model_id": name,
        "num_prompts": len(samples),
        **summary,
        **pairs(args.metadata, "--metadata"),
        **(_details(results) if args.save_detailed else {}),
    }


class _Load:
    """Sends requests as the arguments say."""

    def __init__(
        self, client: HttpClient, args: ServeArgs, model: str, tokenizer: "Tokenizer"
    ) -> None:
        self._client = client
        self._args = args
        self._model = model
        self._tokenizer = tokenizer
        self._slots = asyncio.Semaphore(args.max_concurrency or sys.maxsize)

    async def send_all(self, samples: list[Sample]) -> list[RequestResult]:
        """One result per sample, in order."""
        from tqdm import tqdm

        with tqdm(total=len(samples), disable=self._args.disable_tqdm) as bar:

            async def one(index: int, sample: Sample) -> RequestResult:
                async with self._slots:
                    result = await self.send(sample, str(index))
                bar.update()
                return result

            tasks = []
            async for index in _arrivals(len(samples), self._args):
                tasks.append(asyncio.ensure_future(one(index, samples[index])))
            return list(await asyncio.gather(*tasks))

    async def send(self, sample: Sample, name: str) -> RequestResult:
        """One request from send to end; what goes wrong is in the result."""
        result = RequestResult(len(sample.token_ids), time.perf_counter())
        headers = {"X-Request-Id": f"{self._args.request_id_prefix}{name}"}
        try:
            events = self._client.stream(self._args.path, self._body(sample), headers)
            await self._read(events, result)
        except HttpError as error:
            result.error = f"the server answered {error}"
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            result.error = f"{type(error).__name__}: {error}"
        return result

    async def _read(self, events: AsyncIterator[bytes], result: RequestResult) -> None:
        last = result.start
        async for data in events:
            now = time.perf_counter()
            chunk = json.loads(data)
            if "error" in chunk:
                raise HttpError(int(chunk["error"].get("code") or 500), chunk["error"]["message"])
            if chunk.get("usage"):
                result.num_output_tokens = chunk["usage"]["completion_tokens"]
            text = "".join(_text(choice) for choice in chunk["choices"])
            if text:
                result.note(now, last)
                result.text += text
                last = now
        if not result.num_output_tokens and result.text:
            count = len(self._tokenizer.encode(result.text, add_special_tokens=False))
            result.num_output_tokens = count
        result.latency = result.latency or time.perf_counter() - result.start

    def _body(self, sample: Sample) -> dict[str, Any]:
        args = self._args
        body: dict[str, Any] = {
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if args.is_chat:
            body["messages"] = [{"role": "user", "content": sample.text}]
            body["max_completion_tokens"] = sample.output_len
        else:
            # Token ids, so that the server sees exactly the wanted number of tokens.
            body["prompt"] = sample.token_ids
            body["max_tokens"] = sample.output_len
        if args.logprobs is not None:
            chat = {"logprobs": True, "top_logprobs": args.logprobs}
            body.update(chat if args.is_chat else {"logprobs": args.logprobs})
        if args.ignore_eos:
            body["ignore_eos"] = True
        if args.chat_template_kwargs:
            body["chat_template_kwargs"] = args.chat_template_kwargs
        for name in _SAMPLING:
            if getattr(args, name) is not None:
                body[name] = getattr(args, name)
        return {**body, **(args.extra_body or {})}


def _text(choice: dict[str, Any]) -> str:
    """What a chunk adds, answer or reasoning."""
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or ""
    return (delta.get("reasoning") or "") + (delta.get("content") or "")


async def _arrivals(count: int, args: ServeArgs) -> AsyncIterator[int]:
    """0, 1, 2 ... at the times at which requests are to be sent."""
    rng = random.Random(args.seed)
    start, due = time.perf_counter(), 0.0
    for index in range(count):
        yield index
        rate = _rate(index / max(1, count - 1), args)
        if rate == float("inf"):
            continue
        due += rng.gammavariate(args.burstiness, 1.0 / (rate * args.burstiness))
        await asyncio.sleep(max(0.0, start + due - time.perf_counter()))


def _rate(progress: float, args: ServeArgs) -> float:
    """Requests per second after that share of the requests."""
    first, last = args.ramp_up_start_rps, args.ramp_up_end_rps
    if args.ramp_up_strategy is None or first is None or last is None:
        return args.request_rate
    if args.ramp_up_strategy == "linear":
        return first + (last - first) * progress
    return float(first * (last / first) ** progress)


async def _wait_for_server(client: HttpClient, base: str, seconds: int) -> dict[str, Any]:
    """The first model card, once the server answers."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            card: dict[str, Any] = (await client.get("/v1/models"))["data"][0]
            return card
        except HttpError as error:
            raise ConfigError(f"{base} answered {error}") from error
        except OSError as error:
            if time.monotonic() >= deadline:
                raise ConfigError(f"no server at {base} ({error})") from error
            await asyncio.sleep(0.2)


def _tokenizer(args: ServeArgs, card: dict[str, Any]) -> "Tokenizer":
    from vllm.transformers_utils.tokenizer import get_tokenizer

    name = args.tokenizer or args.model or str(card.get("root") or card["id"])
    try:
        return get_tokenizer(name, args.tokenizer_mode)
    except ConfigError as error:
        raise ConfigError(f"the tokenizer {name} can't be loaded ({error}); give --tokenizer.")


def _details(results: Sequence[RequestResult]) -> dict[str, Any]:
    return {
        "input_lens": [one.prompt_len for one in results],
        "output_lens": [one.num_output_tokens for one in results],
        "ttfts": [one.ttft for one in results],
        "itls": [one.itls for one in results],
        "generated_texts": [one.text for one in results],
        "errors": [one.error for one in results],
    }


def _save(args: ServeArgs, summary: dict[str, Any]) -> None:
    if args.output_json:
        report.write_json(args.output_json, summary)
    if not (args.save_result or args.append_result):
        return
    model = str(summary["model_id"]).rpartition("/")[2]
    name = args.result_filename or f"{args.backend}-{model}-{summary['date']}.json"
    path = f"{args.result_dir}/{name}"
    if args.append_result:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(summary) + "\n")
    else:
        report.write_json(path, summary)


if __name__ == "__main__":
    from vllm.benchmarks.command import run_module

    run_module("serve", main)
