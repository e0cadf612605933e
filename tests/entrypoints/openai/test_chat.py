"""/v1/chat/completions: whole answers, streams, and that the two are the same."""

import logging
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.entrypoints.openai.folding import events, fold_chat, whole_chat
from tests.v1.engine.fake import EOS
from vllm.version import __version__

URL = "/v1/chat/completions"
HEAD = "<start>user\n"
TAIL = "<eos>\n<start>assistant\n"


def say(text: str, **fields: Any) -> dict[str, Any]:
    """A request that the scripted model answers with `text`."""
    return {"messages": [{"role": "user", "content": f"[[{text}]]"}], **fields}


def num_tokens(text: str) -> int:
    """Tokens of a one-message prompt: a byte each, three special tokens count once."""
    prompt = f"{HEAD}[[{text}]]{TAIL}"
    for special in ("<start>", "<eos>"):
        prompt = prompt.replace(special, "#")
    return len(prompt.encode())


async def post(client: httpx.AsyncClient, body: Any, status: int = 200) -> Any:
    response = await client.post(URL, json=body)
    assert response.status_code == status, response.text
    return response.json()


async def stream(client: httpx.AsyncClient, body: Any) -> list[Any]:
    response = await client.post(URL, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response.text)


async def test_whole_answer(client: httpx.AsyncClient) -> None:
    body = await post(client, say("Hello wörld", seed=1))
    prompt, out = num_tokens("Hello wörld"), len("Hello wörld".encode()) + 1
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body.pop("system_fingerprint").startswith(f"vllm-{__version__}-")
    assert body == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello wörld",
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                    "reasoning_content": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "service_tier": None,
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": out,
            "total_tokens": prompt + out,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "metrics": None,
    }


async def test_whole_stream(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, say("ab", max_tokens=1))
    [request_id] = {chunk.pop("id") for chunk in chunks}
    assert request_id.startswith("chatcmpl-")
    assert chunks[1].pop("system_fingerprint").startswith(f"vllm-{__version__}-")
    assert all(isinstance(chunk.pop("created"), int) for chunk in chunks)
    head = {"object": "chat.completion.chunk", "model": "tiny"}
    role, last = {"role": "assistant", "content": ""}, {"content": "a"}
    end = {"finish_reason": "length", "stop_reason": None}
    assert chunks == [
        {**head, "choices": [{"index": 0, "delta": role, "logprobs": None, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": last, "logprobs": None, **end}]},
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, "none"),
        ({}, "none"),
        ({"include_usage": False}, "none"),
        ({"continuous_usage_stats": True}, "none"),
        ({"include_usage": True}, "last"),
        ({"include_usage": True, "continuous_usage_stats": True}, "each"),
    ],
)
async def test_usage_in_streams(client: httpx.AsyncClient, options: Any, expected: str) -> None:
    chunks = await stream(client, say("abc", stream_options=options))
    usages = [chunk.get("usage", "absent") for chunk in chunks]
    prompt = num_tokens("abc")
    if expected == "none":
        assert set(usages) == {"absent"}
        return
    assert chunks[-1]["choices"] == []
    assert all(chunk["choices"] for chunk in chunks[:-1])
    assert (usages[-1]["prompt_tokens"], usages[-1]["completion_tokens"]) == (prompt, 4)
    if expected == "last":
        assert usages[:-1] == [None] * (len(chunks) - 1)
    else:
        counts = [usage["completion_tokens"] for usage in usages]
        # Chunks that wait for the reader are joined, so not every count need appear.
        assert counts == sorted(counts)
        assert (counts[0], counts[-2:]) == (0, [4, 4])
        assert {usage["prompt_tokens"] for usage in usages} == {prompt}


async def test_forced_usage_and_cached_tokens(make_client: Any) -> None:
    client = await make_client(
        {"enable_force_include_usage": True, "enable_prompt_tokens_details": True}
    )
    text = "x" * 100
    await stream(client, say(text, max_tokens=1))
    last = (await stream(client, say(text, max_tokens=1)))[-1]
    # 16 tokens per block; at least one token of the prompt is computed.
    cached = (num_tokens(text) - 1) // 16 * 16
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}


# ---- text --------------------------------------------------------------------------------------

HARD_TEXTS = [
    "ď",
    "🌶 hot",
    "👨‍👩‍👧‍👦!",
    "สวัสดีครับ",
    "a\u0301e",
    "\u200b\u2028",
    '"\\\n\t\x7f',
    "<b>&amp;",
]


@pytest.mark.parametrize("text", HARD_TEXTS)
async def test_split_characters_arrive_whole(client: httpx.AsyncClient, text: str) -> None:
    chunks = await stream(client, say(text))
    assert fold_chat(chunks)[0]["content"] == text
    assert all("\ufffd" not in str(chunk) for chunk in chunks)
    assert (await post(client, say(text)))["choices"][0]["message"]["content"] == text


async def test_invalid_tail_is_flushed_once(client: httpx.AsyncClient) -> None:
    """Cut in the middle of a character by max_tokens."""
    for cut in (1, 2, 3):
        whole = whole_chat(await post(client, say("🌶", max_tokens=cut)))
        assert fold_chat(await stream(client, say("🌶", max_tokens=cut))) == whole
        assert whole[0]["content"].strip("\ufffd") == ""
        assert len(whole[0]["content"]) >= 1


@pytest.mark.parametrize("stop", ["DEFG", ["XYZ", "DEFG"], ["DEFGHIJ", "DE"], ["G", "DEFG"]])
async def test_stop_strings_never_leak(client: httpx.AsyncClient, stop: Any) -> None:
    stops = [stop] if isinstance(stop, str) else stop
    matched = min(
        (word for word in stops if word in "ABCDEFGHIJ"),
        key=lambda word: ("ABCDEFGHIJ".index(word) + len(word), stops.index(word)),
    )
    text = "ABCDEFGHIJ".partition(matched)[0]
    whole = whole_chat(await post(client, say("ABCDEFGHIJ", stop=stop)))[0]
    assert (whole["content"], whole["finish_reason"], whole["stop_reason"]) == (
        text, "stop", matched,
    )  # fmt: skip
    chunks = await stream(client, say("ABCDEFGHIJ", stop=stop))
    assert fold_chat(chunks)[0] == whole
    included = await post(client, say("ABCDEFGHIJ", stop=stop, include_stop_str_in_output=True))
    assert included["choices"][0]["message"]["content"] == text + matched


async def test_length_and_stop_token(client: httpx.AsyncClient) -> None:
    body = await post(client, say("ABCDEF", max_tokens=3))
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3
    body = await post(client, say("ABCDEF", max_completion_tokens=2, max_tokens=5))
    assert body["choices"][0]["message"]["content"] == "AB"
    body = await post(client, say("ABCDEF", stop_token_ids=[ord("D")]))
    choice = body["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("ABC", ord("D"))


async def test_missing_max_tokens_fills_the_context(make_client: Any) -> None:
    client = await make_client(max_model_len=64)
    body = await post(client, say("x" * 30, ignore_eos=True))
    assert body["usage"]["total_tokens"] == 64
    body = await post(client, say("x" * 30, ignore_eos=True, max_tokens=64))
    assert body["usage"]["total_tokens"] == 64


# ---- logprobs ----------------------------------------------------------------------------------


async def test_logprobs_without_top(client: httpx.AsyncClient) -> None:
    body = await post(client, say("aö", logprobs=True))
    content = body["choices"][0]["logprobs"]["content"]
    assert content[0] == {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    assert [entry["bytes"] for entry in content[1:3]] == [[0xC3], [0xB6]]
    assert content[3]["token"] == "<eos>"
    assert len(content) == body["usage"]["completion_tokens"] == 4


async def test_top_logprobs(client: httpx.AsyncClient) -> None:
    body = await post(client, say("a", logprobs=True, top_logprobs=3))
    top = body["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert [(one["token"], one["logprob"], one["bytes"]) for one in top] == [
        ("a", -0.5, [97]),
        ("b", -1.5, [98]),
        ("c", -2.5, [99]),
    ]
    for count in (0, 20):
        body = await post(client, say("a", logprobs=True, top_logprobs=count))
        assert len(body["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == count


@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 3},
        {"top_logprobs": 3, "logprobs": False},
        {"top_logprobs": 21, "logprobs": True},
        {"top_logprobs": -1, "logprobs": True},
        {"top_logprobs": -2, "logprobs": True},
    ],
)
async def test_bad_top_logprobs(client: httpx.AsyncClient, fields: Any) -> None:
    error = (await post(client, say("a", **fields), 400))["error"]
    assert error["param"] == "top_logprobs"
    assert error["code"] == 400


async def test_token_ids(client: httpx.AsyncClient) -> None:
    fields = {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": True}
    body = await post(client, say("ab", return_prompt_text=True, **fields))
    assert body["choices"][0]["token_ids"] == [97, 98, EOS]
    assert body["prompt_text"] == f"{HEAD}[[ab]]{TAIL}"
    assert len(body["prompt_token_ids"]) == body["usage"]["prompt_tokens"]
    tokens = [one["token"] for one in body["choices"][0]["logprobs"]["content"]]
    assert tokens == ["token_id:97", "token_id:98", f"token_id:{EOS}"]
    chunks = await stream(client, say("ab", **fields))
    assert chunks[0]["prompt_token_ids"] == body["prompt_token_ids"]
    assert fold_chat(chunks) == whole_chat(body)


async def test_prompt_logprobs(client: httpx.AsyncClient) -> None:
    body = await post(client, say("ab", prompt_logprobs=0))
    values = body["prompt_logprobs"]
    assert values[0] is None
    assert len(values) == body["usage"]["prompt_tokens"]
    assert values[2] == {str(ord("s")): {"logprob": -0.5, "rank": 1, "decoded_token": "s"}}


# ---- several choices, echo, continuation -------------------------------------------------------


async def test_choices_of_a_stream_keep_their_index(client: httpx.AsyncClient) -> None:
    body = say("abc", n=3, temperature=1, seed=7)
    whole = whole_chat(await post(client, body))
    assert sorted(whole) == [0, 1, 2]
    chunks = await stream(client, {**body, "stream_options": {"include_usage": True}})
    assert fold_chat(chunks) == whole
    assert [chunk["choices"][0]["index"] for chunk in chunks[:3]] == [0, 1, 2]
    assert chunks[-1]["usage"]["completion_tokens"] == 12


async def test_echo_and_continuation(client: httpx.AsyncClient) -> None:
    body = {
        "messages": [
            {"role": "user", "content": "[[def]]"},
            {"role": "assistant", "content": "abc"},
        ],
        "add_generation_prompt": False,
        "continue_final_message": True,
        "echo": True,
        "return_prompt_text": True,
    }
    answer = await post(client, body)
    assert answer["prompt_text"] == f"{HEAD}[[def]]<eos>\n<start>assistant\nabc"
    assert answer["choices"][0]["message"]["content"] == "abcdef"
    assert fold_chat(await stream(client, body)) == whole_chat(answer)


# ---- the property ------------------------------------------------------------------------------

fields = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(1, 12),
        "stop": st.lists(st.text("abö🌶", min_size=1, max_size=3), max_size=2),
        "include_stop_str_in_output": st.booleans(),
        "logprobs": st.just(True),
        "n": st.integers(1, 3),
        "ignore_eos": st.booleans(),
        "min_tokens": st.integers(0, 3),
        "return_token_ids": st.booleans(),
        "stream_interval": st.integers(1, 4),
        "skip_special_tokens": st.booleans(),
    },
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=st.text("abcdeö🌶", max_size=8), fields=fields)
async def test_stream_equals_whole(client: httpx.AsyncClient, text: str, fields: Any) -> None:
    fields = {"max_tokens": 12, **fields}
    fields["min_tokens"] = min(fields.get("min_tokens", 0), fields["max_tokens"])
    body = say(text, **fields, seed=3)
    whole = await post(client, body)
    options = {"include_usage": True}
    chunks = await stream(client, {**body, "stream_options": options})
    assert fold_chat(chunks) == whole_chat(whole)
    assert chunks[-1]["usage"] == whole["usage"]


# ---- failures ----------------------------------------------------------------------------------


async def test_failure_in_a_stream(client: httpx.AsyncClient, log_records: Any) -> None:
    chunks = await stream(client, say("abcde!fail!"))
    *parts, last = chunks
    assert fold_chat(parts)[0]["content"] == "abcde"
    assert fold_chat(parts)[0]["finish_reason"] is None
    assert set(last) == {"error"}
    assert (last["error"]["code"], last["error"]["type"]) == (500, "InternalServerError")
    lines = [record.getMessage() for record in log_records if record.levelno >= logging.ERROR]
    assert len(lines) == 1
    assert chunks[0]["id"] in lines[0]
    assert (await post(client, say("ok")))["choices"][0]["message"]["content"] == "ok"
    metrics = (await client.get("/metrics")).text
    assert 'finished_reason="error",model_name="tiny"} 1.0' in metrics


async def test_failure_without_stream(client: httpx.AsyncClient) -> None:
    error = (await post(client, say("ab!fail!"), 500))["error"]
    assert error["type"] == "InternalServerError"
    assert error["code"] == 500
    assert (await post(client, say("ok")))["choices"][0]["message"]["content"] == "ok"


async def test_failing_choice_does_not_touch_a_neighbour(client: httpx.AsyncClient) -> None:
    import asyncio

    bodies = [say(f"good {i}") if i % 2 else say(f"bad {i}!fail!") for i in range(10)]
    answers = await asyncio.gather(*(client.post(URL, json=body) for body in bodies))
    assert [answer.status_code for answer in answers] == [500, 200] * 5
    for i in range(1, 10, 2):
        assert answers[i].json()["choices"][0]["message"]["content"] == f"good {i}"


# ---- names and defaults ------------------------------------------------------------------------


async def test_model_names(client: httpx.AsyncClient) -> None:
    for name, shown in ((None, "tiny"), ("", "tiny"), ("tiny", "tiny"), ("alias", "alias")):
        assert (await post(client, say("x", model=name)))["model"] == shown
    error = (await post(client, say("x", model="other"), 404))["error"]
    assert error == {
        "message": "The model `other` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


async def test_defaults_of_the_model(make_client: Any) -> None:
    client = await make_client(override_generation_config={"max_new_tokens": 3, "top_k": 1})
    assert (await post(client, say("abcdef")))["usage"]["completion_tokens"] == 3
    assert (await post(client, say("abcdef", max_tokens=2)))["usage"]["completion_tokens"] == 2
    card = (await client.get("/v1/models")).json()["data"][0]
    assert card["default_sampling_params"]["max_tokens"] == 3
    assert card["default_sampling_params"]["top_k"] == 1
    assert card["default_sampling_params"]["temperature"] == 1.0


async def test_request_ids(make_client: Any) -> None:
    client = await make_client({"enable_request_id_headers": True})
    headers = {"X-Request-Id": "abc-1"}
    responses = [await client.post(URL, json=say("x"), headers=headers) for _ in range(2)]
    assert [one.json()["id"] for one in responses] == ["chatcmpl-abc-1"] * 2
    assert [one.headers["x-request-id"] for one in responses] == ["abc-1"] * 2
    assert len((await client.get("/health")).headers["x-request-id"]) == 32
    assert (await post(client, say("x", request_id="r7")))["id"] == "chatcmpl-r7"
    odd = await client.post(URL, json=say("x"), headers={"X-Request-Id": "a b\u00e9".encode()})
    assert odd.json()["id"] != "chatcmpl-a b\u00e9"


async def test_same_request_id_at_once(client: httpx.AsyncClient) -> None:
    import asyncio

    headers = {"X-Request-Id": "0"}
    answers = await asyncio.gather(
        *(client.post(URL, json=say(f"text {i}"), headers=headers) for i in range(8))
    )
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert texts == [f"text {i}" for i in range(8)]
