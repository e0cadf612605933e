"""/v1/completions: prompts of every form, echo, scoring, logprobs, streams."""

import asyncio
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.entrypoints.openai.folding import events, fold_completion, whole_completion
from tests.v1.engine.fake import EOS, continuation

URL = "/v1/completions"


async def post(client: httpx.AsyncClient, body: Any, status: int = 200) -> Any:
    response = await client.post(URL, json=body)
    assert response.status_code == status, response.text
    return response.json()


async def stream(client: httpx.AsyncClient, body: Any) -> list[Any]:
    response = await client.post(URL, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return events(response.text)


async def test_whole_answer(client: httpx.AsyncClient) -> None:
    body = await post(client, {"prompt": "[[Hi]]"})
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body.pop("system_fingerprint").startswith("vllm-")
    assert body == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "text": "Hi",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
            }
        ],
        "usage": {
            "prompt_tokens": 6,
            "completion_tokens": 3,
            "total_tokens": 9,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
    }


async def test_whole_stream(client: httpx.AsyncClient) -> None:
    body = {"prompt": "[[Hi]]", "max_tokens": 1, "stream_options": {"include_usage": True}}
    chunks = await stream(client, body)
    for chunk in chunks:
        del chunk["id"], chunk["created"]
    head = {"object": "text_completion", "model": "tiny"}
    usage = {
        "prompt_tokens": 6,
        "completion_tokens": 1,
        "total_tokens": 7,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    choice = {
        "index": 0, "text": "H", "logprobs": None, "finish_reason": "length", "stop_reason": None,
    }  # fmt: skip
    assert chunks == [
        {**head, "choices": [choice], "usage": None},
        {**head, "choices": [], "usage": usage},
    ]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hello", ["Hello"]),
        (["Hello"], ["Hello"]),
        (["Hello", "you"], ["Hello", "you"]),
        ([72, 101], ["He"]),
        ([[72, 101], [121]], ["He", "y"]),
        (["Hello", [121]], ["Hello", "y"]),
    ],
)
async def test_forms_of_prompts(client: httpx.AsyncClient, prompt: Any, prompts: Any) -> None:
    body = await post(client, {"prompt": prompt, "max_tokens": 4, "n": 2, "temperature": 1})
    right = []
    for text in prompts:
        right += [bytes(continuation(text.encode(), 4)).decode()] * 2
    assert [choice["text"] for choice in body["choices"]] == right
    assert [choice["index"] for choice in body["choices"]] == list(range(len(right)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert body["usage"]["completion_tokens"] == 4 * len(right)


@pytest.mark.parametrize(
    "prompt",
    [None, [], [[]], "", [""], [[65], []], ["a", 3], [[1.5]], [True], [-1], [260], [2**63],
     {"a": 1}, 7, [[[1]]], ["x"] * 1025, [[1]] * 1025],
)  # fmt: skip
async def test_bad_prompts(client: httpx.AsyncClient, prompt: Any) -> None:
    for more in ({}, {"echo": True}, {"stream": True}):
        error = (await post(client, {"prompt": prompt, "max_tokens": 2, **more}, 400))["error"]
        assert error["param"].startswith("prompt")
    assert (await post(client, {"prompt": "[[ok]]"}))["choices"][0]["text"] == "ok"


async def test_max_tokens(client: httpx.AsyncClient) -> None:
    assert (await post(client, {"prompt": "Hello"}))["usage"]["completion_tokens"] == 16
    body = await post(client, {"prompt": "Hello", "max_tokens": None})
    assert body["usage"]["total_tokens"] == 512
    error = (await post(client, {"prompt": "Hello", "max_tokens": 513}, 400))["error"]
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")


@pytest.mark.parametrize("length", [511, 512, 513, 5120, 500_000])
async def test_long_prompts(client: httpx.AsyncClient, length: int) -> None:
    prompt = "x" * length
    if length == 511:
        assert (await post(client, {"prompt": prompt}))["usage"]["completion_tokens"] == 1
        return
    error = (await post(client, {"prompt": prompt}, 400))["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert "512" in error["message"]
    if length < 1000:  # far longer ones are refused before they are tokenized
        assert str(length) in error["message"]
    scored = {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 0}
    if length == 512:
        body = await post(client, scored)
        assert body["choices"][0]["text"] == prompt
        assert len(body["choices"][0]["logprobs"]["tokens"]) == 512
    else:
        assert (await post(client, scored, 400))["error"]["code"] == "context_length_exceeded"


# ---- logprobs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 2])
async def test_logprobs(client: httpx.AsyncClient, count: int, echo: bool, max_tokens: int) -> None:
    request = {"prompt": "[[añ]]", "logprobs": count, "echo": echo, "max_tokens": max_tokens}
    body = await post(client, request)
    choice = body["choices"][0]
    prompt = list("[[añ]]".encode()) if echo else []
    tokens = prompt + list("añ".encode())[:max_tokens]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(tokens)
    assert logprobs["token_logprobs"] == [
        None if echo and i == 0 else -0.5 for i in range(len(tokens))
    ]
    if count == 0:
        assert logprobs["top_logprobs"] is None
    else:
        for entry in logprobs["top_logprobs"][echo:]:
            assert len(entry) == count
    if echo:
        assert logprobs["tokens"][3:5] == ["bytes:\\xc3", "bytes:\\xb1"]
    # Offsets in characters: both bytes of the letter point to it.
    chars = [0, 1, 2, 3, 3, 4, 5, 6, 7] if echo else [0, 1]
    assert logprobs["text_offset"] == chars[: len(tokens)]
    assert choice["text"].startswith("[[añ]]" if echo else "")
    assert body["usage"]["completion_tokens"] == max_tokens
    if max_tokens == 0:
        assert choice["finish_reason"] == "length"
        assert choice["text"] == ("[[añ]]" if echo else "")


async def test_offsets_skip_special_tokens(client: httpx.AsyncClient) -> None:
    request = {"prompt": "[[ab]]", "logprobs": 1, "ignore_eos": True, "max_tokens": 5}
    logprobs = (await post(client, request))["choices"][0]["logprobs"]
    assert logprobs["tokens"][2:] == ["<eos>"] * 3
    assert logprobs["text_offset"] == [0, 1, 2, 2, 2]
    body = await post(client, {**request, "skip_special_tokens": False})
    assert body["choices"][0]["text"] == "ab<eos><eos><eos>"
    assert body["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2, 7, 12]


@pytest.mark.parametrize("count", [-2, 21, True, "1", 1.0])
async def test_bad_logprobs(client: httpx.AsyncClient, count: Any) -> None:
    error = (await post(client, {"prompt": "a", "logprobs": count}, 400))["error"]
    assert error["param"] == "logprobs"


async def test_chosen_logprobs(client: httpx.AsyncClient) -> None:
    error = (await post(client, {"prompt": "a", "logprob_token_ids": [1]}, 400))["error"]
    assert error["param"] == "logprob_token_ids"


async def test_prompt_logprobs(client: httpx.AsyncClient) -> None:
    body = await post(client, {"prompt": ["ab", "xyz"], "prompt_logprobs": 2, "max_tokens": 1})
    first, second = (choice["prompt_logprobs"] for choice in body["choices"])
    assert (len(first), len(second)) == (2, 3)
    assert first[0] is None
    assert first[1]["98"] == {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
    error = (await post(client, {"prompt": "a", "prompt_logprobs": 1, "stream": True}, 400))[
        "error"
    ]
    assert error["param"] == "prompt_logprobs"


# ---- echo and streams --------------------------------------------------------------------------


async def test_echo_of_token_ids(client: httpx.AsyncClient) -> None:
    body = await post(client, {"prompt": [EOS, 72, 105], "echo": True, "max_tokens": 1})
    assert body["choices"][0]["text"].startswith("Hi")
    body = await post(
        client,
        {"prompt": [EOS, 72], "echo": True, "max_tokens": 1, "skip_special_tokens": False},
    )
    assert body["choices"][0]["text"].startswith("<eos>H")


scripts = st.text("aö🌶", max_size=5).map(lambda text: f"[[{text}]]")
fields = st.fixed_dictionaries(
    {"prompt": st.lists(scripts, min_size=1, max_size=3)},
    optional={
        "max_tokens": st.integers(0, 8),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 2),
        "n": st.integers(1, 2),
        "stop": st.text("aö", min_size=1, max_size=2),
        "return_token_ids": st.booleans(),
        "ignore_eos": st.booleans(),
        "stream_interval": st.integers(1, 3),
    },
)  # fmt: skip


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(body=fields)
async def test_stream_equals_whole(client: httpx.AsyncClient, body: Any) -> None:
    body = {**body, "seed": 5, "temperature": 1}
    whole = await post(client, body)
    chunks = await stream(client, {**body, "stream_options": {"include_usage": True}})
    assert fold_completion(chunks) == whole_completion(whole)
    assert chunks[-1]["usage"] == whole["usage"]


async def test_one_bad_prompt_leaves_nothing_behind(client: httpx.AsyncClient) -> None:
    engine = client.serving.engine  # type: ignore[attr-defined]
    error = (await post(client, {"prompt": ["fine", [9999]], "max_tokens": 400}, 400))["error"]
    assert error["param"] == "prompt"
    await asyncio.sleep(0.05)
    assert engine.num_unfinished_requests == 0


async def test_failure_of_one_prompt(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, {"prompt": ["[[abc]]", "[[x!fail!]]"], "max_tokens": 300})
    assert chunks[-1]["error"]["code"] == 500
    engine = client.serving.engine  # type: ignore[attr-defined]
    await asyncio.sleep(0.05)
    assert engine.num_unfinished_requests == 0


async def test_one_bos(make_client: Any, tmp_path: Any) -> None:
    """A template that prints BOS, a tokenizer that adds it: one on every path."""
    client = await make_client(chat_template="<start>{{ messages[0].content }}")
    tokenizer = client.serving.engine.get_tokenizer()
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    rendered = (await client.post("/tokenize", json={"messages": chat["messages"]})).json()
    bos = tokenizer.token_to_id("<start>")
    assert rendered["tokens"] == [bos, 104, 105]
    answer = await client.post("/v1/chat/completions", json={**chat, "return_token_ids": True})
    assert answer.json()["prompt_token_ids"] == rendered["tokens"]
    text = await client.post("/tokenize", json={"prompt": "<start>hi"})
    assert text.json()["tokens"] == rendered["tokens"]
    completion = await post(
        client, {"prompt": "<start>hi", "max_tokens": 1, "return_token_ids": True}
    )
    assert completion["choices"][0]["prompt_token_ids"] == rendered["tokens"]
