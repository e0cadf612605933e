"""A worker that computes nothing but keeps the books of a real one, as oracle for the scheduler.

The KV cache holds, instead of keys and values, a digest of all tokens up to a position. Before a
token is "sampled" every position that attention would read must hold the digest of the request's
own tokens: a wrong block, a stale block or a block shared between different prefixes is found at
once. The next token is a function of the tokens so far, so the right output of a request is known
without running anything (`expected_tokens`).
"""

import hashlib
from types import SimpleNamespace

from vllm.sampling_params import SamplingParams
from vllm.v1.core.scheduler import Scheduler
from vllm.v1.messages import (
    EngineCoreOutput,
    EngineCoreRequest,
    KVCacheConfig,
    KVCacheGroup,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from vllm.v1.request import Request

VOCAB = 50
EOS = 0


def vllm_config(**changes: object) -> SimpleNamespace:
    """The configuration fields that the scheduler reads."""
    values: dict[str, object] = {
        "max_num_batched_tokens": 16,
        "max_num_scheduled_tokens": None,
        "max_num_seqs": 4,
        "max_num_active_seqs": None,
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 0,
        "scheduling_policy": "fcfs",
        "watermark": 0.0,
        "enable_prefix_caching": True,
        "prefix_caching_hash_algo": "sha256",
        "max_model_len": 1000,
    }
    unknown = changes.keys() - values.keys()
    if unknown:
        raise TypeError(f"unknown fields {unknown}")
    values.update(changes)
    everything = SimpleNamespace(**values)
    return SimpleNamespace(
        scheduler_config=everything, cache_config=everything, model_config=everything
    )


def kv_config(num_blocks: int = 20, block_size: int = 4, windows=(None,)) -> KVCacheConfig:
    """One layer per group; `windows` has one entry per group."""
    groups = tuple(KVCacheGroup((i,), window) for i, window in enumerate(windows))
    return KVCacheConfig(num_blocks, block_size, 1, groups)


def message(request_id: str, prompt: list[int], **changes: object) -> EngineCoreRequest:
    """A request; keywords that SamplingParams knows go there."""
    names = SamplingParams.__struct_fields__
    params = {key: changes.pop(key) for key in list(changes) if key in names and key != "seed"}
    return EngineCoreRequest(
        request_id,
        list(prompt),
        SamplingParams(**params),
        arrival_time=changes.pop("arrival_time", 0.0),
        eos_token_ids=[EOS],
        **changes,
    )


def add(scheduler: Scheduler, request_id: str, prompt: list[int], **changes: object) -> Request:
    """Build a request and give it to the scheduler."""
    request = Request.from_message(message(request_id, prompt, **changes), 10**9)
    scheduler.add_request(request)
    return request


def next_token(token_ids: list[int], seed: int) -> int:
    """The token that the simulated model gives after `token_ids`."""
    digest = hashlib.md5(repr((token_ids, seed)).encode()).digest()
    return int.from_bytes(digest[:4], "little") % VOCAB


def expected_tokens(request: EngineCoreRequest, max_total_tokens: int) -> list[int]:
    """Output of the request, from the definition of the stop conditions."""
    params, tokens = request.sampling_params, list(request.prompt_token_ids)
    tokens += request.output_token_ids
    while True:
        tokens.append(next_token(tokens, request.seed))
        num_output = len(tokens) - len(request.prompt_token_ids)
        can_stop = num_output >= params.min_tokens
        if can_stop and tokens[-1] == EOS and not params.ignore_eos:
            break
        if can_stop and tokens[-1] in params.stop_token_ids:
            break
        if num_output == params.max_tokens or len(tokens) >= max_total_tokens:
            break
    return tokens[len(request.prompt_token_ids) + len(request.output_token_ids) :]


class SimulatedWorker:
    """Executes SchedulerOutputs and checks each of them against the protocol."""

    def __init__(self, config: KVCacheConfig, max_num_tokens: int, max_num_seqs: int) -> None:
        self.config = config
        self.max_num_tokens = max_num_tokens
        self.max_num_seqs = max_num_seqs
        self.requests: dict[str, NewRequestData] = {}
        self.num_computed: dict[str, int] = {}
        self.pages: list[dict[tuple[int, int], int]] = [{} for _ in config.groups]
        self.salts: dict[str, str | None] = {}

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step: all keys and values are written before anything attends."""
        self.update(step)
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            self._write(request_id, num_tokens)
        sampled = {}
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            self._attend(request_id, num_tokens)
            self.num_computed[request_id] += num_tokens
            data = self.requests[request_id]
            if self.num_computed[request_id] == len(data.token_ids):
                token = next_token(data.token_ids, data.seed)
                data.token_ids.append(token)
                sampled[request_id] = [token]
        return ModelRunnerOutput(sampled)

    def update(self, step: SchedulerOutput) -> None:
        """Take the step's requests and blocks, and check that it is well formed."""
        for request_id in step.finished_req_ids:
            self.requests.pop(request_id, None)
            self.num_computed.pop(request_id, None)
        for new in step.new_reqs:
            assert new.request_id not in self.requests
            self.requests[new.request_id] = new
            self.num_computed[new.request_id] = new.num_computed_tokens
        for cached in step.cached_reqs:
            assert cached.num_computed_tokens == self.num_computed[cached.request_id]
            tables = self.requests[cached.request_id].block_ids
            for table, blocks in zip(
                tables, cached.new_block_ids or [[]] * len(tables), strict=True
            ):
                table.extend(blocks)
        scheduled = step.num_scheduled_tokens
        assert sum(scheduled.values()) == step.total_num_scheduled_tokens <= self.max_num_tokens
        assert all(num_tokens > 0 for num_tokens in scheduled.values())
        assert len(scheduled) <= self.max_num_seqs
        known = [c.request_id for c in step.cached_reqs] + [n.request_id for n in step.new_reqs]
        assert known == list(scheduled)

    def _write(self, request_id: str, num_tokens: int) -> None:
        data, start = self.requests[request_id], self.num_computed[request_id]
        assert start + num_tokens <= len(data.token_ids)
        digests = prefix_digests(data.token_ids, self.salts[request_id])
        for pages, table in zip(self.pages, data.block_ids, strict=True):
            for position in range(start, start + num_tokens):
                pages[self._slot(table, position)] = digests[position]

    def _attend(self, request_id: str, num_tokens: int) -> None:
        data, start = self.requests[request_id], self.num_computed[request_id]
        digests = prefix_digests(data.token_ids, self.salts[request_id])
        groups = zip(self.config.groups, self.pages, data.block_ids, strict=True)
        for group, pages, table in groups:
            first = 0 if group.window is None else max(0, start - group.window + 1)
            for position in range(first, start + num_tokens):
                assert pages.get(self._slot(table, position)) == digests[position], (
                    f"{request_id}: position {position} holds other keys and values"
                )

    def _slot(self, table: list[int], position: int) -> tuple[int, int]:
        block = table[position // self.config.block_size]
        assert 0 < block < self.config.num_blocks, "a token without a block"
        return block, position % self.config.block_size


def prefix_digests(token_ids: list[int], salt: str | None) -> list[int]:
    """Digest of the tokens up to each position; a salt makes all of them different."""
    digests, digest = [], hash(salt)
    for token_id in token_ids:
        digest = hash((digest, token_id))
        digests.append(digest)
    return digests


class Simulation:
    """Scheduler and worker, with every output collected and every invariant checked."""

    def __init__(self, config: KVCacheConfig, **changes: object) -> None:
        settings = vllm_config(**changes)
        fields = settings.scheduler_config
        self.scheduler = Scheduler(settings, config)
        self.worker = SimulatedWorker(
            config,
            fields.max_num_scheduled_tokens or fields.max_num_batched_tokens,
            fields.max_num_active_seqs or fields.max_num_seqs,
        )
        self.messages: dict[str, EngineCoreRequest] = {}
        self.tokens: dict[str, list[int]] = {}
        self.finished: dict[str, EngineCoreOutput] = {}

    def add(self, request_id: str, prompt: list[int], **changes: object) -> None:
        """Send a request."""
        sent = message(request_id, prompt, **changes)
        self.scheduler.add_request(Request.from_message(sent, 10**9))
        self.messages[request_id] = sent
        self.worker.salts[request_id] = sent.cache_salt
        self.tokens[request_id] = []

    def step(self) -> SchedulerOutput:
        """One whole step."""
        scheduled = self.scheduler.schedule()
        self.scheduler.check_integrity()
        self.collect(self.scheduler.update_from_output(scheduled, self.worker.execute(scheduled)))
        self.scheduler.check_integrity()
        return scheduled

    def run(self, max_steps: int = 100_000) -> int:
        """Step until nothing is left; the number of steps."""
        for num_steps in range(max_steps):
            if not self.scheduler.has_unfinished_requests():
                return num_steps
            assert self.step().num_scheduled_tokens, "a step without progress"
        raise AssertionError(f"requests are left after {max_steps} steps")

    def collect(self, outputs) -> None:
        """Note outputs of the scheduler; a request ends once and says nothing after it."""
        for output in getattr(outputs, "outputs", outputs):
            assert output.request_id not in self.finished
            self.tokens[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                self.finished[output.request_id] = output

    def check_outputs(self) -> None:
        """Every request that was not ended from outside has exactly the tokens of a solo run."""
        limit = self.scheduler.max_request_tokens
        for request_id, sent in self.messages.items():
            expected = expected_tokens(sent, limit)
            got = self.tokens[request_id]
            output = self.finished.get(request_id)
            ended_itself = output is not None and str(output.finish_reason) in ("stop", "length")
            assert got == (expected if ended_itself else expected[: len(got)]), request_id
