"""What a step may hold and who is admitted."""

from dataclasses import dataclass

from vllm.config.flags import BOOL, HUMAN_INT, INT, STR, flag, later


@dataclass(frozen=True)
class SchedulerConfig:
    """Budgets and policies of the scheduler."""

    max_num_batched_tokens: int | None = flag(
        None, "tokens per step; default 2048 for the server, 4096 for the LLM class",
        kind=HUMAN_INT)
    max_num_seqs: int | None = flag(
        None, "requests that run at once; default 128 for the server, 256 for the LLM class",
        kind=INT)
    max_num_active_seqs: int | None = flag(None, "lower cap of running requests", kind=INT)
    max_num_scheduled_tokens: int | None = flag(
        None, "lower cap of tokens per step", kind=HUMAN_INT)
    max_num_queued_reqs: int | None = flag(
        None, "most requests that wait; more get 503", kind=INT)
    max_num_queued_tokens: int | None = flag(
        None, "most prompt tokens that wait; more get 503", kind=HUMAN_INT)
    enable_chunked_prefill: bool = flag(True, "split long prompts over steps")
    long_prefill_token_threshold: int = flag(
        0, "most tokens of one prompt in a step while others wait; 0: no cap")
    long_prefill_token_threshold_adaptive: bool = later(False, "an adaptive prefill cap")
    max_num_partial_prefills: int = flag(
        1, "prompts in work at once, in older releases; has no effect",
        note="as many prompts are in work as the step's budget holds")
    max_long_partial_prefills: int = flag(
        1, "long prompts in work at once, in older releases; has no effect",
        note="--long-prefill-token-threshold keeps room for short prompts")
    scheduling_policy: str = flag("fcfs", "order of waiting requests",
                                  choices=("fcfs", "priority"))
    async_scheduling: bool | None = later(None, "scheduling ahead of the output", kind=BOOL)
    stream_interval: int = flag(1, "tokens gathered before a streamed chunk")
    scheduler_cls: str | None = later(None, "custom schedulers", kind=STR)
    scheduler_reserve_full_isl: bool = later(
        True, "admitting a request before its whole prompt fits")
    watermark: float = flag(0.0, "share of blocks kept free when admitting")
    disable_chunked_mm_input: bool = later(False, "media input")
    prefill_schedule_interval: int = later(1, "data parallelism")
    performance_mode: str = flag(
        "balanced", "throughput: twice the default tokens per step and requests; interactivity: "
        "half the tokens per step", choices=("balanced", "interactivity", "throughput"))
