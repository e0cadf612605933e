"""What the scheduler decides, rule by rule."""

import pytest

from tests.v1.core.scheduler_harness import EOS, Simulation, add, kv_config, message, vllm_config
from vllm.exceptions import ConfigError, VLLMValidationError
from vllm.v1.core.scheduler import Scheduler
from vllm.v1.messages import EngineCoreEventType, FinishReason, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus


def make(num_blocks=100, windows=(None,), **changes) -> Scheduler:
    return Scheduler(vllm_config(**changes), kv_config(num_blocks, 4, windows))


def step(scheduler, token=9, **fields):
    """Schedule; every request that is due a token gets `token`. (who ran, outputs by id)."""
    scheduled = scheduler.schedule()
    due = {
        request_id: [token]
        for request_id in scheduled.num_scheduled_tokens
        if scheduler.requests[request_id].num_computed_tokens
        == scheduler.requests[request_id].num_tokens
    }
    outputs = scheduler.update_from_output(scheduled, ModelRunnerOutput(due, **fields))
    scheduler.check_integrity()
    return scheduled.num_scheduled_tokens, {o.request_id: o for o in outputs.outputs}


def tokens(count, start=1) -> list[int]:
    return list(range(start, start + count))


# ---- the token budget ------------------------------------------------------------------------


def test_decodes_come_first_and_prompts_are_split_to_the_rest_of_the_budget():
    scheduler = make(max_num_batched_tokens=16)
    for name, length in [("a", 10), ("b", 20), ("c", 3)]:
        add(scheduler, name, tokens(length), skip_reading_prefix_cache=True)
    assert step(scheduler)[0] == {"a": 10, "b": 6}
    assert step(scheduler)[0] == {"a": 1, "b": 14, "c": 1}
    ran, outputs = step(scheduler)
    assert list(ran.items()) == [("a", 1), ("b", 1), ("c", 2)]
    assert [outputs[name].new_token_ids for name in "abc"] == [[9]] * 3


def test_a_prompt_in_progress_does_not_delay_later_decodes():
    scheduler = make(max_num_batched_tokens=8, long_prefill_token_threshold=6)
    add(scheduler, "long", tokens(40))
    add(scheduler, "short", [50, 51])
    assert step(scheduler)[0] == {"long": 6, "short": 2}
    assert list(step(scheduler)[0].items()) == [("short", 1), ("long", 6)]


def test_long_prefill_threshold_matters_only_beside_others():
    scheduler = make(max_num_batched_tokens=16, long_prefill_token_threshold=5)
    add(scheduler, "a", tokens(40))
    assert step(scheduler)[0] == {"a": 16}
    add(scheduler, "b", tokens(40, 100))
    assert step(scheduler)[0] == {"a": 5, "b": 5}


def test_without_chunking_a_prompt_waits_for_a_step_that_holds_it():
    scheduler = make(max_num_batched_tokens=16, enable_chunked_prefill=False)
    for name, length in [("a", 10), ("b", 9), ("c", 2)]:
        add(scheduler, name, tokens(length), skip_reading_prefix_cache=True)
    assert step(scheduler)[0] == {"a": 10}, "c must not overtake b"
    assert step(scheduler)[0] == {"a": 1, "b": 9, "c": 2}


def test_a_request_whose_token_is_not_known_yet_has_nothing_to_run():
    scheduler = make()
    add(scheduler, "a", tokens(4))
    first = scheduler.schedule()
    assert scheduler.schedule().num_scheduled_tokens == {}
    outputs = scheduler.update_from_output(first, ModelRunnerOutput({"a": [9]})).outputs
    assert outputs[0].new_token_ids == [9]
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1}


def test_max_num_scheduled_tokens_overrides_the_batch_size():
    scheduler = make(max_num_batched_tokens=16, max_num_scheduled_tokens=6)
    add(scheduler, "a", tokens(10))
    assert step(scheduler)[0] == {"a": 6}
    above = make(max_num_batched_tokens=16, max_num_scheduled_tokens=100)
    add(above, "a", tokens(40))
    assert step(above)[0] == {"a": 16}, "the worker has no room for more"


@pytest.mark.parametrize(("active", "expected"), [(None, "abc"), (2, "ab")])
def test_sequences_are_limited(active, expected):
    scheduler = make(max_num_batched_tokens=100, max_num_seqs=3, max_num_active_seqs=active)
    for name in "abcd":
        add(scheduler, name, [1, 2])
    assert "".join(step(scheduler)[0]) == expected
    stats = scheduler.make_stats()
    assert (stats.num_running_reqs, stats.num_waiting_reqs) == (len(expected), 4 - len(expected))


def test_priority_policy_admits_the_lowest_value_then_the_earliest():
    scheduler = make(scheduling_policy="priority", max_num_seqs=2)
    add(scheduler, "low", [1], priority=5)
    add(scheduler, "late", [1], priority=0, arrival_time=2.0)
    add(scheduler, "early", [1], priority=0, arrival_time=1.0)
    assert list(step(scheduler)[0]) == ["early", "late"]


def test_unknown_settings_are_refused():
    with pytest.raises(ConfigError, match="scheduling_policy"):
        make(scheduling_policy="random")
    with pytest.raises(ConfigError, match="max_model_len is auto"):
        make(max_model_len="auto")
    with pytest.raises(ConfigError, match="prefix_caching_hash_algo"):
        make(prefix_caching_hash_algo="xxhash_cbor")


# ---- admission -------------------------------------------------------------------------------


def test_a_prompt_is_admitted_only_if_all_of_it_fits_beside_the_running_ones():
    scheduler = make(num_blocks=21, max_num_batched_tokens=8)
    add(scheduler, "a", tokens(40))  # 10 of 20 blocks, taken chunk by chunk
    add(scheduler, "b", tokens(40, 100))  # 10 more: with a block of headroom one too many
    assert step(scheduler)[0] == {"a": 8}
    for _ in range(4):
        assert step(scheduler)[0] == {"a": 8}
    scheduler.finish_requests(["a"])
    assert step(scheduler)[0] == {"b": 8}


def test_watermark_keeps_blocks_free_beside_running_requests():
    scheduler = make(num_blocks=21, watermark=0.5, max_num_batched_tokens=100)
    add(scheduler, "a", tokens(41))  # 11 of 20 blocks; alone it starts, whatever the watermark
    add(scheduler, "b", [1])
    assert step(scheduler)[0] == {"a": 41}
    assert step(scheduler)[0] == {"a": 1}
    scheduler.finish_requests(["a"])
    add(scheduler, "c", [2])
    assert step(scheduler)[0] == {"b": 1, "c": 1}


def test_what_can_never_run_is_refused():
    scheduler = make(num_blocks=11, max_model_len=1000)
    assert scheduler.max_request_tokens == 40
    with pytest.raises(VLLMValidationError, match="has 40 tokens and may have at most 40"):
        add(scheduler, "a", tokens(40))
    with pytest.raises(VLLMValidationError, match="prompt is empty"):
        add(scheduler, "a", [])
    with pytest.raises(VLLMValidationError, match="has 5 tokens and may have at most 5"):
        add(scheduler, "a", tokens(3), output_token_ids=[1, 2], max_tokens=2)
    assert not scheduler.has_unfinished_requests()
    add(scheduler, "a", tokens(39), max_tokens=100)
    with pytest.raises(VLLMValidationError, match="'a' is in use"):
        add(scheduler, "a", [1])
    for _ in range(3):
        outputs = step(scheduler)[1]
    assert outputs["a"].finish_reason is FinishReason.LENGTH


def test_a_prompt_as_long_as_the_context_can_be_scored():
    scheduler = make(num_blocks=11)
    with pytest.raises(VLLMValidationError):
        add(scheduler, "a", tokens(40), max_tokens=1)
    with pytest.raises(VLLMValidationError):
        add(scheduler, "a", tokens(40), prompt_logprobs=1, max_tokens=2)
    add(scheduler, "a", tokens(40), prompt_logprobs=1, max_tokens=1)
    for _ in range(3):
        outputs = step(scheduler)[1]
    assert outputs["a"].finish_reason is FinishReason.LENGTH


def test_limits_of_the_longest_request():
    assert make(num_blocks=1000, max_model_len=100).max_request_tokens == 100
    unchunked = make(enable_chunked_prefill=False, max_num_batched_tokens=32)
    assert unchunked.max_request_tokens == 32


# ---- preemption ------------------------------------------------------------------------------


def preempting(policy="fcfs", **priorities):
    """Three requests of 2 blocks each in a pool of 9, each about to need a third and a fourth."""
    scheduler = make(num_blocks=10, scheduling_policy=policy, max_num_batched_tokens=100)
    for i, name in enumerate("abc"):
        add(scheduler, name, tokens(7, 10 * i), max_tokens=30, priority=priorities.get(name, 0))
    for _ in range(6):
        assert len(step(scheduler)[0]) == 3
    return scheduler


def test_fcfs_preempts_the_last_running_request_and_admits_nobody():
    scheduler = preempting()
    add(scheduler, "d", [1])
    victim = scheduler.requests["c"]
    scheduled = scheduler.schedule()
    assert scheduled.num_scheduled_tokens == {"a": 1, "b": 1}
    assert scheduled.finished_req_ids == ["c"]
    assert (victim.status, victim.num_computed_tokens) == (RequestStatus.PREEMPTED, 0)
    assert victim.num_output_tokens == 6, "generated tokens are kept"
    assert scheduler.waiting.peek() is victim, "it waits in front of d"
    outputs = scheduler.update_from_output(scheduled, ModelRunnerOutput({"a": [9], "b": [9]}))
    assert outputs.stats.num_preemptions == 1
    scheduler.check_integrity()


def test_priority_preempts_the_lowest_priority():
    scheduler = preempting("priority", a=0, b=7, c=3)
    assert scheduler.schedule().finished_req_ids == ["b"]


def test_nobody_is_admitted_in_a_step_that_preempted():
    scheduler = make(num_blocks=9, scheduling_policy="priority", max_num_seqs=2)
    add(scheduler, "a", tokens(8), priority=0)
    add(scheduler, "big", tokens(20, 50), priority=9)
    assert step(scheduler)[0] == {"a": 8, "big": 8}
    add(scheduler, "d", [1], priority=1)
    assert step(scheduler)[0] == {"a": 1, "big": 12}
    # big needs a ninth block and is itself the worst: five blocks and a turn are free now.
    scheduled = scheduler.schedule()
    assert scheduled.finished_req_ids == ["big"]
    assert scheduled.num_scheduled_tokens == {"a": 1}
    scheduler.update_from_output(scheduled, ModelRunnerOutput({"a": [9]}))
    assert step(scheduler)[0] == {"a": 1, "d": 1}


def test_a_victim_that_was_already_scheduled_gives_its_turn_back():
    """The worst priority runs first in the step, then a better one needs its blocks."""
    scheduler = make(
        num_blocks=7, scheduling_policy="priority", max_num_batched_tokens=100, max_num_seqs=2
    )
    add(scheduler, "bad", tokens(6), priority=9, max_tokens=50)
    step(scheduler)
    add(scheduler, "good", tokens(10, 50), priority=0, max_tokens=50)
    ran = []
    while "bad" not in (scheduled := scheduler.schedule()).finished_req_ids:
        ran.append(list(scheduled.num_scheduled_tokens))
        due = {request_id: [9] for request_id in scheduled.num_scheduled_tokens}
        scheduler.update_from_output(scheduled, ModelRunnerOutput(due))
    assert ran[-1] == ["bad", "good"]
    assert scheduled.num_scheduled_tokens == {"good": 1}
    assert [c.request_id for c in scheduled.cached_reqs] == ["good"]
    assert scheduled.total_num_scheduled_tokens == 1
    scheduler.check_integrity()


def test_a_preempted_request_finds_its_blocks_again():
    scheduler = preempting()
    scheduler.schedule()
    scheduler.finish_requests(["a", "b"])
    victim = scheduler.requests["c"]
    scheduled = scheduler.schedule()
    new = scheduled.new_reqs[0]
    assert new.token_ids == [*tokens(7, 20), *[9] * 6]
    # Of its three blocks a and b took the last two, so that the first is still a prefix.
    assert (new.num_prompt_tokens, new.num_computed_tokens) == (7, 4)
    assert scheduled.num_scheduled_tokens == {"c": 9}
    assert victim.num_cached_tokens == 0, "only the first scheduling counts"
    assert scheduler.make_stats().prefix_cache.hits == 0


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_requests_that_each_want_the_whole_pool_take_turns_and_end(policy, prefix_caching):
    simulation = Simulation(
        kv_config(11, 4),
        scheduling_policy=policy,
        enable_prefix_caching=prefix_caching,
        max_num_batched_tokens=8,
    )
    for i, name in enumerate("abcd"):
        simulation.add(name, tokens(4, i), max_tokens=36, ignore_eos=True, seed=i)
    num_steps = simulation.run(max_steps=400)
    simulation.check_outputs()
    assert all(len(simulation.tokens[name]) == 36 for name in "abcd")
    # One after the other, each on its own: 4 x (1 prefill + 35 decodes).
    assert num_steps <= 4 * 36 + 20


@pytest.mark.parametrize("seed", range(8))
def test_64_blocks_and_200_requests_all_finish_like_solo_runs(seed):
    import random

    rng = random.Random(seed)
    simulation = Simulation(
        kv_config(65, 4, rng.choice([(None,), (None, 9)])),
        max_num_seqs=32,
        max_num_batched_tokens=64,
        max_model_len=100,
    )
    for i in range(200):
        base = rng.choice([[], tokens(9), tokens(17)])
        prompt = base + [rng.randint(1, 5) for _ in range(rng.randint(1, 30))]
        simulation.add(f"r{i}", prompt, max_tokens=rng.randint(1, 60), seed=i % 3)
        if i % 7 == 0:
            simulation.step()
    simulation.run()
    simulation.check_outputs()
    assert len(simulation.finished) == 200
    assert simulation.scheduler.kv.usage == 0.0


# ---- ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "sampled", "reason", "stop_reason", "kept"),
    [
        ({}, [5, EOS], FinishReason.STOP, None, 2),
        ({"ignore_eos": True, "max_tokens": 3}, [EOS] * 3, FinishReason.LENGTH, None, 3),
        ({"stop_token_ids": [5]}, [4, 5], FinishReason.STOP, 5, 2),
        ({"stop_token_ids": [EOS]}, [EOS], FinishReason.STOP, None, 1),
        ({"stop_token_ids": [EOS], "ignore_eos": True}, [EOS], FinishReason.STOP, EOS, 1),
        ({"max_tokens": 2}, [5, 6], FinishReason.LENGTH, None, 2),
        ({"max_tokens": 1, "stop_token_ids": [5]}, [5], FinishReason.STOP, 5, 1),
        ({"max_tokens": None}, [5] * 6, FinishReason.LENGTH, None, 6),
        ({"min_tokens": 3, "stop_token_ids": [5]}, [5, EOS, 5], FinishReason.STOP, 5, 3),
        ({"min_tokens": 2, "max_tokens": 2}, [EOS, EOS], FinishReason.STOP, None, 2),
    ],
)
def test_stop_conditions(params, sampled, reason, stop_reason, kept):
    scheduler = make(max_model_len=10)
    add(scheduler, "a", tokens(4), **params)
    for i, token in enumerate(sampled):
        output = step(scheduler, token)[1]["a"]
        assert (output.finish_reason is None) == (i < len(sampled) - 1)
    assert (output.finish_reason, output.stop_reason, i + 1) == (reason, stop_reason, kept)
    assert not scheduler.has_unfinished_requests()
    assert scheduler.kv.usage == 0.0
    assert scheduler.schedule().finished_req_ids == ["a"]
    assert scheduler.schedule().finished_req_ids == []


def test_tokens_after_the_end_are_dropped_with_their_logprobs():
    scheduler = make()
    add(scheduler, "a", tokens(4), stop_token_ids=[7])
    scheduled = scheduler.schedule()
    result = ModelRunnerOutput({"a": [5, 7, 8]}, logprobs={"a": ["five", "seven", "eight"]})
    output = scheduler.update_from_output(scheduled, result).outputs[0]
    assert output.new_token_ids == [5, 7]
    assert output.new_logprobs == ["five", "seven"]
    assert output.finish_reason is FinishReason.STOP


def test_an_error_ends_one_request_and_its_blocks_are_not_shared():
    scheduler = make(max_num_batched_tokens=100)
    add(scheduler, "bad", tokens(12))
    add(scheduler, "good", tokens(12, 50))
    _, outputs = step(scheduler, errors={"bad": "processor raised"})
    assert outputs["bad"].finish_reason is FinishReason.ERROR
    assert outputs["bad"].error == "processor raised"
    assert outputs["bad"].new_token_ids == []
    assert outputs["good"].new_token_ids == [9] and outputs["good"].finish_reason is None
    add(scheduler, "again", tokens(12))
    add(scheduler, "twin", tokens(12, 50))
    step(scheduler)
    assert scheduler.requests["again"].num_cached_tokens == 0
    assert scheduler.requests["twin"].num_cached_tokens == 8


def test_a_runner_that_gives_no_token_is_an_error_not_a_stall():
    scheduler = make()
    add(scheduler, "a", tokens(4))
    output = scheduler.update_from_output(scheduler.schedule(), ModelRunnerOutput({})).outputs[0]
    assert output.finish_reason is FinishReason.ERROR
    assert "no token" in output.error
    assert not scheduler.has_unfinished_requests()


def test_a_failed_step_ends_its_requests_and_leaves_nothing_in_the_cache():
    scheduler = make(max_num_batched_tokens=12)
    add(scheduler, "a", tokens(12))
    add(scheduler, "b", tokens(12))
    scheduled = scheduler.schedule()
    aborted = scheduler.finish_requests(["b"])
    outputs = scheduler.fail_step(scheduled, "out of memory")
    assert [(o.request_id, o.error) for o in outputs.outputs] == [("a", "out of memory")]
    assert [o.finish_reason for o in aborted] == [FinishReason.ABORT]
    assert scheduler.kv.pool.num_cached == 0 and scheduler.kv.usage == 0.0
    scheduler.check_integrity()


def test_abort_in_every_state():
    scheduler = make(max_num_batched_tokens=8, max_num_seqs=2)
    for i, name in enumerate("abc"):
        add(scheduler, name, tokens(8, 10 * i))
    assert step(scheduler)[0] == {"a": 8}
    scheduled = scheduler.schedule()
    assert scheduled.num_scheduled_tokens == {"a": 1, "b": 7}
    ended = scheduler.finish_requests(["c", "a", "b", "b", "nobody"])
    assert [(o.request_id, o.finish_reason) for o in ended] == [
        ("c", FinishReason.ABORT),
        ("a", FinishReason.ABORT),
        ("b", FinishReason.ABORT),
    ]
    scheduler.check_integrity()
    stats = scheduler.make_stats()
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage) == (0, 0, 0.0)
    late = scheduler.update_from_output(scheduled, ModelRunnerOutput({"a": [9], "b": [9]}))
    assert late.outputs == []
    assert scheduler.schedule().finished_req_ids == ["a", "b"], "the worker never knew c"


def test_an_id_that_was_aborted_in_flight_can_be_used_again():
    scheduler = make()
    add(scheduler, "a", tokens(4))
    scheduled = scheduler.schedule()
    scheduler.finish_requests(["a"])
    add(scheduler, "a", tokens(5, 50))
    assert scheduler.update_from_output(scheduled, ModelRunnerOutput({"a": [9]})).outputs == []
    again = scheduler.schedule()
    assert again.finished_req_ids == ["a"]
    assert again.new_reqs[0].token_ids == tokens(5, 50)


# ---- prefix cache ----------------------------------------------------------------------------


def cached_tokens(scheduler, name, prompt, **changes) -> int:
    """Run a request to its end; how many of its prompt tokens came from the cache."""
    add(scheduler, name, prompt, max_tokens=1, **changes)
    while name in scheduler.requests:
        outputs = step(scheduler)[1]
    return outputs[name].num_cached_tokens


def test_full_blocks_are_found_and_one_token_is_always_computed():
    scheduler = make(max_num_batched_tokens=100)
    assert cached_tokens(scheduler, "a", tokens(12)) == 0
    assert cached_tokens(scheduler, "b", tokens(12)) == 8
    assert cached_tokens(scheduler, "c", tokens(13)) == 12
    assert cached_tokens(scheduler, "d", [*tokens(6), 99, 98, 97]) == 4
    assert cached_tokens(scheduler, "e", tokens(3)) == 0
    stats = [0, 0, 0]
    scheduler.make_stats()
    cached_tokens(scheduler, "f", tokens(12), skip_reading_prefix_cache=True)
    prefix = scheduler.make_stats().prefix_cache
    assert [prefix.requests, prefix.queries, prefix.hits] == stats


def test_salts_separate_and_equal_salts_share():
    scheduler = make(max_num_batched_tokens=100)
    assert cached_tokens(scheduler, "a", tokens(12), cache_salt="tenant") == 0
    assert cached_tokens(scheduler, "b", tokens(12), cache_salt="other") == 0
    assert cached_tokens(scheduler, "c", tokens(12)) == 0
    assert cached_tokens(scheduler, "d", tokens(12), cache_salt="tenant") == 8


def test_prompt_logprobs_do_not_read_the_cache_but_fill_it():
    scheduler = make(max_num_batched_tokens=100)
    assert cached_tokens(scheduler, "a", tokens(12), prompt_logprobs=1) == 0
    assert cached_tokens(scheduler, "b", tokens(12), prompt_logprobs=1) == 0
    assert cached_tokens(scheduler, "c", tokens(12)) == 8


def test_output_tokens_are_cached_for_the_next_turn():
    scheduler = make(max_num_batched_tokens=100)
    add(scheduler, "a", tokens(6), max_tokens=7, ignore_eos=True)
    for _ in range(7):
        step(scheduler, 40)
    assert not scheduler.has_unfinished_requests()
    # 6 + 7 tokens, of which the last has no keys and values: 3 full blocks.
    assert cached_tokens(scheduler, "b", [*tokens(6), *[40] * 7, 5]) == 12


def test_equal_prompts_of_one_step_share_the_prefill():
    scheduler = make(max_num_batched_tokens=100)
    for name in "abc":
        add(scheduler, name, tokens(13))
    assert step(scheduler)[0] == {"a": 13, "b": 1, "c": 1}
    assert scheduler.kv.pool.num_used == 4 + 1 + 1


def test_no_sharing_if_switched_off():
    scheduler = make(enable_prefix_caching=False, max_num_batched_tokens=100)
    assert cached_tokens(scheduler, "a", tokens(12)) == 0
    assert cached_tokens(scheduler, "b", tokens(12)) == 0
    assert scheduler.kv.pool.num_cached == 0


def test_reset_is_refused_while_blocks_are_in_use():
    scheduler = make(max_num_batched_tokens=100)
    cached_tokens(scheduler, "a", tokens(12))
    add(scheduler, "b", tokens(5, 60))
    step(scheduler)
    assert scheduler.reset_prefix_cache() is False
    assert scheduler.kv.pool.num_cached == 4
    assert scheduler.reset_prefix_cache(reset_running_requests=True) is True
    assert scheduler.kv.pool.num_cached == 0
    assert step(scheduler)[0] == {"b": 6}, "it computes its prompt and its token again"
    scheduler.finish_requests(["b"])
    assert scheduler.reset_prefix_cache() is True
    assert cached_tokens(scheduler, "c", tokens(12)) == 0


def test_windows_free_what_they_left_behind():
    scheduler = make(windows=(None, 6), max_num_batched_tokens=8)
    add(scheduler, "a", tokens(30))
    for _ in range(4):
        step(scheduler)
    full, window = scheduler.kv.table(scheduler.requests["a"]).groups
    assert len(full) == len(window) == 8 and all(full)
    # The last allocation was made at 24 computed tokens: position 24 sees 19 to 24.
    assert window[:4] == [0] * 4 and all(window[4:])
    assert scheduler.kv.pool.num_used == 8 + 4


def test_a_hit_needs_the_window_only():
    scheduler = make(num_blocks=16, windows=(None, 6), max_num_batched_tokens=100)
    assert cached_tokens(scheduler, "a", tokens(25)) == 0
    pool = scheduler.kv.pool
    keys = {block: key for key, block in pool._cached.items()}
    by_group = [[b for b in sorted(keys) if len(keys[b]) == size] for size in (32, 33)]
    for block in by_group[1][:4]:
        pool.forget(block)  # what was before the window of token 24
    assert cached_tokens(scheduler, "b", tokens(25)) == 24
    pool.forget(by_group[1][5])
    assert cached_tokens(scheduler, "c", [*tokens(24), 7]) == 0


# ---- prompt logprobs, resumption, events -----------------------------------------------------


def test_prompt_logprobs_are_delivered_once_even_if_computed_twice():
    scheduler = make(max_num_batched_tokens=6)
    add(scheduler, "a", tokens(10), prompt_logprobs=1)

    def run() -> list:
        """A runner that gives an entry for each prompt position that it computed."""
        request = scheduler.requests["a"]
        before = request.num_computed_tokens if request.status is RequestStatus.RUNNING else 0
        scheduled = scheduler.schedule()
        count = scheduled.num_scheduled_tokens["a"]
        before = request.num_computed_tokens - count
        entries = list(range(before + 1, min(before + count + 1, 10)))
        due = {"a": [9]} if request.num_computed_tokens == request.num_tokens else {}
        result = ModelRunnerOutput(due, prompt_logprobs={"a": entries})
        return [
            o.new_prompt_logprobs for o in scheduler.update_from_output(scheduled, result).outputs
        ]

    assert run() == [[1, 2, 3, 4, 5, 6]]
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    assert run() == []
    assert run() == [[7, 8, 9]]
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    assert run() == []
    assert run() == [None]


def test_a_resumed_request_goes_on_where_it_was():
    scheduler = make(max_num_batched_tokens=100, max_num_seqs=1)
    add(scheduler, "new", tokens(4))
    add(scheduler, "old", tokens(4, 20), output_token_ids=[9, 9, 9], max_tokens=5)
    scheduled = scheduler.schedule()
    data = scheduled.new_reqs[0]
    assert (data.request_id, data.token_ids) == ("old", [*tokens(4, 20), 9, 9, 9])
    assert data.num_prompt_tokens == 4
    outputs = scheduler.update_from_output(scheduled, ModelRunnerOutput({"old": [8]})).outputs
    assert outputs[0].new_token_ids == [8] and outputs[0].finish_reason is None
    assert step(scheduler)[1]["old"].finish_reason is FinishReason.LENGTH
    assert scheduler.make_stats().prefix_cache.requests == 0


def test_events_tell_the_life_of_a_request():
    scheduler = preempting()
    victim, events = scheduler.requests["c"], []
    for name in ("a", "b"):
        scheduler.requests[name].max_num_tokens = 16
    while scheduler.has_unfinished_requests():
        output = step(scheduler)[1].get("c")
        events += (output.events or []) if output else []
    assert victim.num_preemptions == 1
    # QUEUED and SCHEDULED left with the first token, before this test looked.
    assert [event.type for event in events] == [
        EngineCoreEventType.PREEMPTED,
        EngineCoreEventType.SCHEDULED,
    ]
    assert events[0].timestamp <= events[1].timestamp
    add(scheduler, "d", [1])
    first = step(scheduler)[1]["d"].events
    assert [event.type for event in first] == [
        EngineCoreEventType.QUEUED,
        EngineCoreEventType.SCHEDULED,
    ]
    assert step(scheduler)[1]["d"].events is None


def test_stats_count_a_step_once():
    scheduler = make(max_num_batched_tokens=16, num_blocks=21)
    add(scheduler, "a", tokens(10))
    add(scheduler, "b", tokens(10))
    scheduled = scheduler.schedule()
    stats = scheduler.update_from_output(scheduled, ModelRunnerOutput({"a": [9], "b": [9]})).stats
    assert scheduled.num_scheduled_tokens == {"a": 10, "b": 2}
    assert (stats.num_scheduled_tokens, stats.num_prefill_tokens) == (12, 12)
    assert (stats.prefix_cache.requests, stats.prefix_cache.queries, stats.prefix_cache.hits) == (
        2,
        20,
        8,
    )
    assert stats.kv_cache_usage == 4 / 20
    scheduled = scheduler.schedule()
    stats = scheduler.update_from_output(scheduled, ModelRunnerOutput({"a": [9], "b": [9]})).stats
    assert (stats.num_scheduled_tokens, stats.num_prefill_tokens) == (2, 0)
    assert stats.prefix_cache.requests == 0


def test_check_integrity_sees_damage():
    scheduler = make()
    request = add(scheduler, "a", tokens(4))
    step(scheduler)
    for damage, repair in [
        (lambda: scheduler.running.clear(), lambda: scheduler.running.append(request)),
        (lambda: setattr(request, "status", RequestStatus.WAITING),
         lambda: setattr(request, "status", RequestStatus.RUNNING)),
        (lambda: setattr(request, "num_computed_tokens", 50),
         lambda: setattr(request, "num_computed_tokens", 4)),
        (lambda: scheduler.kv.table(request).groups[0].append(0),
         lambda: scheduler.kv.table(request).groups[0].pop()),
    ]:  # fmt: skip
        damage()
        with pytest.raises(RuntimeError):
            scheduler.check_integrity()
        repair()
        scheduler.check_integrity()
    from_message = Request.from_message(message("w", [1, 2]), 100)
    from_message.num_computed_tokens = 1
    scheduler.add_request(from_message)
    with pytest.raises(RuntimeError, match="waits but has computed tokens"):
        scheduler.check_integrity()
