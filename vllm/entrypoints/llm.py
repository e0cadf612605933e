"""LLM: generate text from a script. Requests go in together; the engine batches them."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from vllm import envs
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.progress import Progress
from vllm.exceptions import ConfigError, VLLMError, VLLMValidationError
from vllm.inputs import PromptType
from vllm.outputs import BeamSearchOutput, RequestOutput
from vllm.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from vllm.transformers_utils.tokenizer import Tokenizer
from vllm.v1.engine.beam_search import BeamSearch
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.unsupported import refuse, unsupported_sync
from vllm.v1.metrics.loggers import StatLogger

if TYPE_CHECKING:
    from vllm.entrypoints.chat import ChatOptions

Params = SamplingParams | Sequence[SamplingParams] | None
UseTqdm = bool | Callable[..., Any]

_MASK = (1 << 64) - 1


class LLM:
    """A model and an engine for it; keyword arguments are those of EngineArgs."""

    def __init__(
        self,
        model: str | None = None,
        *,
        chat_template: str | None = None,
        disable_log_stats: bool = True,
        logits_processors: Sequence[str | type] | None = None,
        **kwargs: Any,
    ) -> None:
        if logits_processors:
            kwargs["logits_processors"] = [_dotted_name(one) for one in logits_processors]
        args = EngineArgs(model=model, disable_log_stats=disable_log_stats, **kwargs)
        config = args.create_engine_config(usage_context="llm")
        self._stat_loggers: list[StatLogger] = []
        if not disable_log_stats:
            from vllm.v1.metrics.prometheus import PrometheusStatLogger

            self._stat_loggers.append(PrometheusStatLogger(config))
        self.llm_engine = LLMEngine(
            config,
            stat_loggers=self._stat_loggers,
            next_seed=_seed_source(config.model_config.seed),
        )
        self._chat_template = chat_template
        self._request_ids = itertools.count()
        self._enqueued: list[str] = []
        self._finished: dict[str, RequestOutput] = {}

    # ---- generating --------------------------------------------------------------------------

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: object | None = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """One output per prompt, in order. Default parameters are those of the model."""
        request_ids = self._add(
            prompts, sampling_params, lora_request, priority, tokenization_kwargs
        )
        return self._wait_for(request_ids, use_tqdm)

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: object | None = None,
        *,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """As `generate`, for one conversation or several."""
        from vllm.entrypoints.chat import ChatOptions  # with jinja2 a third of this module's import

        prompts = self._render(
            messages,
            chat_template_content_format,
            ChatOptions(
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template=chat_template,
                kwargs=chat_template_kwargs or {},
            ),
            tools,
        )
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
        )

    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params = None,
        *,
        lora_request: object | None = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Add prompts without running them; `wait_for_completion` does. Returns request ids.

        If one is refused, none is added.
        """
        added = self._add(prompts, sampling_params, lora_request, priority, tokenization_kwargs)
        self._enqueued += added
        return added

    def wait_for_completion(
        self, output_type: type[RequestOutput] | None = None, *, use_tqdm: UseTqdm = True
    ) -> list[RequestOutput]:
        """Run everything that is enqueued; the outputs in the order of the requests."""
        request_ids, self._enqueued = self._enqueued, []
        return self._wait_for(request_ids, use_tqdm)

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: object | None = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The `beam_width` most probable continuations of each prompt, best first."""
        if not isinstance(params, BeamSearchParams):
            _refuse_type("params", params, "BeamSearchParams")
        limit = self.llm_engine.vllm_config.model_config.max_logprobs
        if limit != -1 and 2 * params.beam_width > limit:
            raise VLLMValidationError(
                f"beam_width is {params.beam_width}; it needs twice as many logprobs and "
                f"max_logprobs is {limit}.",
                param="beam_width",
            )
        listed = _as_list(prompts)
        size = concurrency_limit or max(1, len(listed))
        outputs: list[BeamSearchOutput] = []
        with Progress(len(listed), use_tqdm) as progress:
            for start in range(0, len(listed), size):
                searches = [self._new_search(p, params) for p in listed[start : start + size]]
                self._run_searches(searches, lora_request)
                outputs += [self._beam_output(search, params) for search in searches]
                progress.update(len(searches))
        return outputs

    # ---- the engine --------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        tokenizer = self.llm_engine.get_tokenizer()
        if tokenizer is None:
            raise VLLMError("There is no tokenizer: skip_tokenizer_init is set.")
        return tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation config recommends."""
        return SamplingParams(**self.llm_engine.get_default_sampling_params())

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget cached prompt blocks; False if running requests hold some."""
        if reset_connector:
            refuse("reset_connector", "no KV connector is configured.")
        return self.llm_engine.reset_prefix_cache(reset_running_requests)

    def get_metrics(self) -> list[Any]:
        """A snapshot of every metric; needs disable_log_stats=False."""
        if not self._stat_loggers:
            raise VLLMError("Metrics are not collected; pass disable_log_stats=False to LLM.")
        from vllm.v1.metrics.reader import read_metrics

        return [metric for one in self._stat_loggers for metric in read_metrics(one)]

    def get_world_size(self, include_dp: bool = True) -> int:
        """Ranks that run the model."""
        return 1

    def shutdown(self) -> None:
        """End the engine. Happens by itself when the object is no longer used."""
        self.llm_engine.shutdown()

    encode = embed = classify = score = reward = unsupported_sync(
        "encode", "only pooling models have an embedding; this one generates text."
    )
    sleep = wake_up = release_kv_cache_memory = unsupported_sync(
        "sleep", "weights and KV cache stay loaded."
    )
    start_profile = stop_profile = unsupported_sync("start_profile", "there is no profiler.")
    collective_rpc = apply_model = unsupported_sync(
        "collective_rpc", "the worker takes no foreign calls."
    )
    reset_mm_cache = unsupported_sync("reset_mm_cache", "there are no media.")

    # ---- details -----------------------------------------------------------------------------

    def _add(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params,
        lora_request: object | None,
        priority: int | Sequence[int] | None,
        tokenization_kwargs: Mapping[str, Any] | None,
    ) -> list[str]:
        listed = _as_list(prompts)
        params = _one_each(sampling_params or self.get_default_sampling_params(), len(listed))
        priorities = _one_each(priority or 0, len(listed))
        added: list[str] = []
        try:
            for prompt, one, rank in zip(listed, params, priorities, strict=True):
                request_id = str(next(self._request_ids))
                self.llm_engine.add_request(
                    request_id,
                    prompt,
                    _final_only(one),
                    lora_request=lora_request,
                    tokenization_kwargs=tokenization_kwargs,
                    priority=rank,
                )
                added.append(request_id)
        except VLLMError:
            self.llm_engine.abort_request(added)
            raise
        return added

    def _wait_for(self, request_ids: list[str], use_tqdm: UseTqdm) -> list[RequestOutput]:
        """Step until these requests have ended; what others finish meanwhile is kept."""
        missing = set(request_ids)
        with Progress(len(request_ids), use_tqdm) as progress:
            try:
                for request_id in missing & self._finished.keys():
                    missing.discard(request_id)
                    progress.add(self._finished[request_id])
                while missing:
                    for output in self.llm_engine.step():
                        if output.finished:
                            self._finished[output.request_id] = output
                        if output.request_id in missing and output.finished:
                            missing.discard(output.request_id)
                            progress.add(output)
            except KeyboardInterrupt:
                self.llm_engine.abort_request(missing)
                raise
        return [self._finished.pop(request_id) for request_id in request_ids]

    def _render(
        self,
        messages: Sequence[Any],
        content_format: str,
        options: "ChatOptions",
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> list[PromptType]:
        if tools:
            refuse("tools", "this engine has no tool parsers.")
        if content_format not in ("auto", "string", "openai"):
            refuse("chat_template_content_format", "use auto, string or openai.")
        from vllm.entrypoints.chat import ChatRenderer

        renderer = ChatRenderer(
            self.get_tokenizer(),
            chat_template=self._chat_template,
            content_format=content_format,  # type: ignore[arg-type]
        )
        if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
            _refuse_type("messages", messages, "a list of messages or of conversations")
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        conversations = [messages] if is_one else messages
        rendered = [renderer.render(one, options) for one in conversations]
        return [{"prompt_token_ids": one.token_ids, "prompt": one.text} for one in rendered]

    def _new_search(self, prompt: PromptType, params: BeamSearchParams) -> BeamSearch:
        front_end = self.llm_engine.front_end
        _, request = front_end.make_request("beam", prompt, SamplingParams(max_tokens=1))
        eos = front_end.generation_config.eos_token_ids
        return BeamSearch(request.prompt_token_ids, params, eos)

    def _run_searches(self, searches: Sequence[BeamSearch], lora_request: object | None) -> None:
        context = self.llm_engine.front_end.inputs.context
        while any(search.active for search in searches):
            request_ids: list[str] = []
            for search in searches:
                if search.active and len(search.active[0].tokens) >= context:
                    search.cut()
                beams: list[PromptType] = [{"prompt_token_ids": b.tokens} for b in search.active]
                request_ids += self._add(beams, search.step_params(), lora_request, None, None)
            outputs = iter(self._wait_for(request_ids, False))
            for search in searches:
                if search.active:
                    search.advance([_first_logprobs(next(outputs)) for _ in search.active])

    def _beam_output(self, search: BeamSearch, params: BeamSearchParams) -> BeamSearchOutput:
        sequences = search.result()
        tokenizer = self.llm_engine.get_tokenizer()
        if tokenizer is not None:
            for sequence in sequences:
                sequence.text = tokenizer.decode(
                    sequence.tokens, skip_special_tokens=params.skip_special_tokens
                )
        return BeamSearchOutput(sequences)


def _as_list(prompts: PromptType | Sequence[PromptType]) -> list[PromptType]:
    """One prompt or many: a list of ints is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [cast(PromptType, prompts)]
    if isinstance(prompts, (bytes, bytearray)) or not isinstance(prompts, Iterable):
        _refuse_type("prompts", prompts, "a prompt or a list of them")
    listed = list(prompts)
    is_token_ids = bool(listed) and all(isinstance(one, int) for one in listed)
    return [cast(PromptType, listed)] if is_token_ids else cast("list[PromptType]", listed)


def _refuse_type(field: str, value: object, allowed: str) -> NoReturn:
    name = type(value).__name__
    raise VLLMValidationError(f"{field} is of type {name}; it must be {allowed}.", param=field)


def _one_each(given: Any, count: int) -> list[Any]:
    if not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"{len(given)} parameters were given for {count} prompts.")
    return list(given)


def _final_only(params: SamplingParams) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        _refuse_type("sampling_params", params, "SamplingParams")
    params = params.clone()
    params.output_kind = RequestOutputKind.FINAL_ONLY
    return params


def _first_logprobs(output: RequestOutput) -> dict[int, Any]:
    completion = output.outputs[0]
    if not completion.logprobs:
        raise VLLMError(f"A step of the beam search failed: {completion.stop_reason}")
    return completion.logprobs[0]


def _seed_source(seed: int) -> Callable[[], int]:
    """Seeds from the engine's seed and the order of requests (splitmix64): runs repeat exactly."""
    state = seed & _MASK

    def next_seed() -> int:
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    return next_seed


def _dotted_name(processor: str | type) -> str:
    if isinstance(processor, str):
        return processor
    if processor.__module__ == "__main__" and envs.VLLM_ENABLE_V1_MULTIPROCESSING:
        raise ConfigError(
            f"logits_processors: {processor.__qualname__} is defined in the script, where the "
            "engine's process can't find it; put it into a module of its own."
        )
    return f"{processor.__module__}:{processor.__qualname__}"
