"""Requests that are wrong: the answer names the field, and the next request succeeds."""

import json
import re
import time
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm.entrypoints.openai import body as body_module
from vllm.entrypoints.openai.protocol import (
    UNSUPPORTED,
    ChatCompletionRequest,
    CompletionRequest,
)
from vllm.exceptions import EngineDeadError, EngineGenerateError, VLLMError

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "[[ok]]"}]
BASE = {CHAT: {"messages": MESSAGES}, COMPLETION: {"prompt": "[[ok]]"}}
JSON = {"Content-Type": "application/json"}
LEAKS = re.compile(r'0x[0-9a-f]{6,}|File "|Traceback|\.py\b|<class|msgspec|object at')


async def refused(
    client: httpx.AsyncClient, path: str, content: Any, status: int = 400
) -> dict[str, Any]:
    """The error of a refused request; checks its shape and that the server still answers."""
    data = content if isinstance(content, (bytes, str)) else json.dumps(content)
    started = time.monotonic()
    response = await client.post(path, content=data, headers=JSON)
    assert time.monotonic() - started < 5
    assert response.status_code == status, (response.status_code, response.text[:300])
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] in (status, "context_length_exceeded")
    assert not LEAKS.search(response.text), response.text
    alive = await client.post(COMPLETION, json=BASE[COMPLETION])
    assert alive.json()["choices"][0]["text"] == "ok"
    return error


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"310": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"abc": 1}),
        ("logit_bias", {"1": 1e9}), ("logit_bias", {"1": -101}), ("logit_bias", {"1": "x"}),
        ("logit_bias", {str(i % 250): 0 for i in range(250)} | {f"0{i}": 0 for i in range(1750)}),
        ("logit_bias", [1]),
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", "1"), ("temperature", True),
        ("top_p", 0), ("top_p", 1.1), ("top_p", -1), ("top_k", -2), ("top_k", 1.5), ("top_k", "a"),
        ("min_p", -0.1), ("min_p", 1.1), ("repetition_penalty", 0), ("repetition_penalty", -1),
        ("presence_penalty", 2.1), ("frequency_penalty", -2.1),
        ("n", 0), ("n", -1), ("n", 1.0), ("n", "2"), ("n", 10**9), ("n", 2**70), ("n", True),
        ("n", 100_000),
        ("seed", 2**63), ("seed", -(2**63) - 1), ("seed", "1"), ("seed", 1.5),
        ("stop", ""), ("stop", [""]), ("stop", ["a", ""]), ("stop", [1]), ("stop", 7),
        ("stop", ["a", "b", "c", "d", "e"]), ("stop", [None]),
        ("stop_token_ids", [-1]), ("stop_token_ids", [260]), ("stop_token_ids", ["a"]),
        ("allowed_token_ids", []), ("allowed_token_ids", [300]), ("allowed_token_ids", [-1]),
        ("bad_words", [""]), ("bad_words", [1]), ("bad_words", ["x"] * 200),
        ("min_tokens", -1), ("min_tokens", 5000), ("min_tokens", 2**40), ("max_tokens", -1),
        ("max_tokens", 2**40), ("max_tokens", "5"), ("max_tokens", 1.5),
        ("truncate_prompt_tokens", 0), ("truncate_prompt_tokens", -2),
        ("truncate_prompt_tokens", 10**6), ("truncation_side", "middle"),
        ("prompt_logprobs", -2), ("prompt_logprobs", 21), ("stream_interval", 0),
        ("stream_options", 1), ("stream_options", {"include_usage": 1}),
        ("cache_salt", ""), ("cache_salt", "x" * 1025), ("cache_salt", 1),
        ("priority", 1), ("vllm_xargs", {"a": 1}), ("vllm_xargs", {"a": {}}),
        ("stream", "yes"), ("echo", 1), ("ignore_eos", "true"), ("model", 3),
        ("logprob_token_ids", [1]),
    ],
)  # fmt: skip
async def test_bad_values(client: httpx.AsyncClient, path: str, field: str, value: Any) -> None:
    for more in ({}, {"stream": True}):
        error = await refused(client, path, {**BASE[path], **more, field: value})
        # A stream has no prompt logprobs, whatever their number; that is said under their name.
        assert error["param"].split(".")[0].split("[")[0] == field, error
        assert error["type"] in ("Bad Request", "BadRequestError")


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_stream_options_need_a_stream(client: httpx.AsyncClient, path: str) -> None:
    for options in ({}, {"include_usage": True}):
        for stream in (None, False):
            body = {**BASE[path], "stream": stream, "stream_options": options}
            assert (await refused(client, path, body))["param"] == "stream_options"


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_explicit_null_is_as_if_left_out(client: httpx.AsyncClient, path: str) -> None:
    kind = ChatCompletionRequest if path == CHAT else CompletionRequest
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in names:
        if name in ("messages", "prompt"):
            continue
        response = await client.post(path, json={**BASE[path], name: None})
        assert response.status_code == 200, (name, response.text)
    everything = dict.fromkeys(names) | BASE[path]
    assert (await client.post(path, json=everything)).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_min_tokens_beyond_the_context(client: httpx.AsyncClient, path: str) -> None:
    for stream in (False, True):
        body = {**BASE[path], "max_tokens": None, "min_tokens": 5120, "stream": stream}
        assert (await refused(client, path, body))["param"] == "min_tokens"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_chat_names_the_field_that_was_used(client: httpx.AsyncClient, name: str) -> None:
    for value in (0, -1, 513):
        error = await refused(client, CHAT, {**BASE[CHAT], name: value})
        assert error["param"] == name
        assert error["message"].startswith(name)


async def test_context_errors_of_chat(client: httpx.AsyncClient) -> None:
    for size in (600, 100_000):
        body = {"messages": [{"role": "user", "content": "x" * size}]}
        error = await refused(client, CHAT, body)
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


# ---- JSON --------------------------------------------------------------------------------------


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty"])
async def test_numbers_that_json_does_not_have(
    client: httpx.AsyncClient, field: str, literal: str
) -> None:
    body = json.dumps(BASE[CHAT])[:-1] + f', "{field}": {literal}}}'
    error = await refused(client, CHAT, body)
    assert error["param"] == field


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"7", b'"x"', b'{"prompt": "a"', b"{'prompt': 'a'}",
        b'{"prompt": "a"} x', b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b"\xef\xbb\xbf{}",
        b'{"prompt": "a", "x": NaN}', b"\x00", b'{"prompt": "a\x00b"}',
    ],
)  # fmt: skip
async def test_bodies_that_are_no_json(client: httpx.AsyncClient, content: bytes) -> None:
    error = await refused(client, COMPLETION, content)
    assert error["type"] == "Bad Request"


async def test_content_type(client: httpx.AsyncClient) -> None:
    content = json.dumps(BASE[COMPLETION])
    for kind in ("text/plain", "", "application/x-www-form-urlencoded", "application/jsonx"):
        response = await client.post(COMPLETION, content=content, headers={"Content-Type": kind})
        assert response.status_code == 400
        assert "Only 'application/json' is allowed" in response.json()["error"]["message"]
    assert (await client.post(COMPLETION, content=content)).status_code == 400
    for kind in ("application/json; charset=utf-8", "Application/JSON"):
        response = await client.post(COMPLETION, content=content, headers={"Content-Type": kind})
        assert response.status_code == 200


async def test_depth(client: httpx.AsyncClient) -> None:
    def nested(depth: int) -> str:
        return '{"prompt": "[[ok]]", "x": ' + "[" * depth + "]" * depth + "}"

    assert (await client.post(COMPLETION, content=nested(63), headers=JSON)).status_code == 200
    for depth in (64, 100_000):
        assert "deep" in (await refused(client, COMPLETION, nested(depth)))["message"]
    shallow = {"prompt": "[[ok]]", "x": [[1]] * 1000, "y": "[" * 1000, "z": '\\"[' * 500}
    assert (await client.post(COMPLETION, json=shallow)).status_code == 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{}"\\ab', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=30,
)


@given(value=json_values, depth=st.integers(0, 70))
def test_depth_is_counted_rightly(value: Any, depth: int) -> None:
    for _ in range(depth):
        value = [value]

    def deepest(item: Any) -> int:
        if isinstance(item, dict):
            return 1 + max(map(deepest, item.values()), default=0)
        return 1 + max(map(deepest, item), default=0) if isinstance(item, list) else 0

    encoded = json.dumps(value).encode()
    assert body_module.exceeds_depth(encoded) == (deepest(value) > body_module.MAX_DEPTH)


async def test_large_bodies(client: httpx.AsyncClient) -> None:
    big = b'{"prompt": "' + b"x" * body_module.MAX_BODY_BYTES + b'"}'
    error = await refused(client, COMPLETION, big, 413)
    assert str(body_module.MAX_BODY_BYTES) in error["message"]

    async def parts() -> Any:
        for _ in range(100):
            yield b" " * 1_000_000

    response = await client.post(COMPLETION, content=parts(), headers=JSON)
    assert response.status_code == 413
    lying = {**JSON, "Content-Length": "99999999999999999999"}
    assert (await client.post(COMPLETION, content=b"{}", headers=lying)).status_code == 413


async def test_schema_errors_are_listed(client: httpx.AsyncClient) -> None:
    body = {"messages": 3, "n": "x" * 500, "top_p": [], "stop": {}}
    error = await refused(client, CHAT, body)
    lines = error["message"].splitlines()
    assert lines[0] == "4 validation errors:"
    assert len(lines) == 5
    assert len(error["message"]) < 1500
    assert {line.split(":")[0] for line in lines[1:]} == {"messages", "n", "top_p", "stop"}
    many = {name: {} for name in ChatCompletionRequest.__struct_fields__}
    assert len((await refused(client, CHAT, many))["message"].splitlines()) == 11
    assert (await refused(client, CHAT, {}))["param"] == "messages"
    error = await refused(client, CHAT, {"messages": [{"role": "user", "content": "x"}, 5]})
    assert error["param"] == "messages[1]"
    error = await refused(client, COMPLETION, {"prompt": "a", "stop": ["a", None]})
    assert error["param"] == "stop[1]"


# ---- features that are not there ---------------------------------------------------------------

OTHER_VALUES = {
    "best_of": 10**6, "length_penalty": 0.5, "use_beam_search": True, "thinking_token_budget": 3,
    "tool_choice": "auto", "response_format": {"type": "json_object"}, "modalities": ["audio"],
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUPPORTED)
async def test_features_that_do_not_exist_are_refused(client: httpx.AsyncClient, name: str) -> None:
    for path, kind in ((CHAT, ChatCompletionRequest), (COMPLETION, CompletionRequest)):
        if name not in kind.__struct_fields__:
            continue
        for neutral in UNSUPPORTED[name][1]:
            response = await client.post(path, json={**BASE[path], name: neutral})
            assert response.status_code == 200, response.text
        if name != "include_reasoning":
            other = OTHER_VALUES.get(name, [{"x": 1}])
            error = await refused(client, path, {**BASE[path], name: other})
            assert error["param"] == name
            assert name in error["message"]


async def test_unknown_fields_are_skipped(client: httpx.AsyncClient) -> None:
    for path, base in BASE.items():
        response = await client.post(path, json={**base, "made_up": {"a": [1]}, "metadata": {}})
        assert response.status_code == 200


async def test_chat_template_of_a_request(make_client: Any) -> None:
    body = {**BASE[CHAT], "chat_template": "{{ messages[0].content }}", "return_prompt_text": True}
    client = await make_client()
    assert (await refused(client, CHAT, body))["param"] == "chat_template"
    assert (
        await refused(client, "/tokenize", {k: body[k] for k in ("messages", "chat_template")})
    )["param"] == "chat_template"
    trusting = await make_client({"trust_request_chat_template": True})
    assert (await trusting.post(CHAT, json=body)).json()["prompt_text"] == "[[ok]]"
    loop = "{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}"
    error = await refused(trusting, CHAT, {**body, "chat_template": loop})
    assert error["param"] == "messages"
    error = await refused(trusting, CHAT, {**body, "chat_template": "{% if %}"})
    assert error["param"] == "chat_template"


async def test_template_arguments(make_client: Any) -> None:
    client = await make_client(
        {"default_chat_template_kwargs": {"a": 1, "b": 2}},
        chat_template="{{ messages[0].content }}{{ a }}{{ b }}{{ reasoning_effort }}",
    )
    body = {
        **BASE[CHAT],
        "chat_template_kwargs": {"b": 3},
        "reasoning_effort": "low",
        "return_prompt_text": True,
    }
    assert (await client.post(CHAT, json=body)).json()["prompt_text"] == "[[ok]]13low"
    error = await refused(client, CHAT, {**body, "chat_template_kwargs": {"tokenize": True}})
    assert error["param"] == "chat_template_kwargs"
    assert (await refused(client, CHAT, {**body, "reasoning_effort": "huge"}))["param"] == (
        "reasoning_effort"
    )


async def test_refusals_of_the_template(make_client: Any) -> None:
    client = await make_client(chat_template="{{ raise_exception('Only\\n questions!') }}")
    error = await refused(client, CHAT, BASE[CHAT])
    assert (error["message"], error["param"]) == ("Only questions!", "messages")
    client = await make_client(chat_template="{{ messages[0].foo.bar }}")
    assert (await refused(client, CHAT, BASE[CHAT]))["param"] == "messages"


async def test_model_without_a_template(make_client: Any, tmp_path: Any) -> None:
    client = await make_client(chat_template=None)
    error = await refused(client, CHAT, BASE[CHAT])
    assert "--chat-template" in error["message"]
    assert error["param"] == "messages"


async def test_headers(make_client: Any) -> None:
    client = await make_client(scheduling_policy="priority")

    async def status(**headers: str) -> int:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return (await client.post(COMPLETION, json=BASE[COMPLETION], headers=names)).status_code

    assert await status(X_Vllm_Priority="-5") == 200
    assert await status(X_Vllm_Priority="x") == 400
    assert await status(X_data_parallel_rank="0") == 200
    assert await status(X_data_parallel_rank="1") == 400
    assert await status(X_data_parallel_rank="abc") == 200


async def test_queue_limit(make_client: Any) -> None:
    import asyncio

    client = await make_client(max_num_queued_reqs=2, max_num_seqs=1, seed=2000)
    body = {"prompt": "Hello", "max_tokens": 30}
    answers = await asyncio.gather(*(client.post(COMPLETION, json=body) for _ in range(8)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200] * 3 + [503] * 5
    refusal = next(answer for answer in answers if answer.status_code == 503)
    assert refusal.headers["retry-after"] == "1"
    assert refusal.json()["error"]["type"] == "ServiceUnavailableError"
    metrics = (await client.get("/metrics")).text
    assert re.search(r"admission_rejections_total\{.*max_num_queued_reqs.*\} 5\.0", metrics)


async def test_values_at_the_edge(client: httpx.AsyncClient) -> None:
    for fields in (
        {"stop": ["a", "a"]}, {"stop": "x" * 10_000}, {"stop": []}, {"logit_bias": {"1": -100}},
        {"logit_bias": {}}, {"temperature": 1e-30}, {"temperature": 2}, {"seed": -1},
        {"seed": 2**63 - 1}, {"seed": -(2**63)}, {"top_k": -1}, {"min_tokens": 0}, {"user": "x"},
        {"cache_salt": "\x00/é"},
    ):  # fmt: skip
        for path in (CHAT, COMPLETION):
            response = await client.post(path, json={**BASE[path], **fields})
            assert response.status_code == 200, (fields, response.text)


# ---- what can go wrong inside ------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("/usr/lib/secret.py at 0xdeadbeef"),
        MemoryError(),
        KeyError("x"),
        AssertionError("<class 'int'>"),
        VLLMError('File "/home/me/secret.py", line 3'),
        EngineGenerateError("Traceback (most recent call last): at 0x7f00deadbeef"),
        EngineDeadError("gone /opt/models/secret.bin"),
        UnicodeError("x"),
        RecursionError("maximum recursion depth exceeded"),
    ],
)
@pytest.mark.parametrize("site", ["engine", "tokenizer", "renderer"])
async def test_faults_inside_tell_nothing(
    client: httpx.AsyncClient, monkeypatch: Any, error: Exception, site: str
) -> None:
    serving: Any = client.serving  # type: ignore[attr-defined]

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    target, name, paths = {
        "engine": (serving.engine, "add_request", [CHAT, COMPLETION]),
        "tokenizer": (serving.tokenizer, "encode", ["/tokenize"]),
        "renderer": (serving.renderer, "render", [CHAT]),
    }[site]
    with monkeypatch.context() as patch:
        patch.setattr(target, name, fail)
        for path in paths:
            for stream in (False, True):
                body = {**BASE.get(path, {"prompt": "x"}), "stream": stream}
                response = await client.post(path, json=body)
                assert response.status_code == 500
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
                assert not LEAKS.search(response.text), response.text
                assert "secret" not in response.text
    assert (await client.post(COMPLETION, json=BASE[COMPLETION])).status_code == 200


# ---- everything --------------------------------------------------------------------------------

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from([-1, 0, 1, 2**31, 2**63, -(2**63), 1e308, "", "<eos>", "\x00"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "0", "x"]), inner),
    max_leaves=8,
)  # fmt: skip
ALLOWED = {200, 400, 404, 413, 422, 503}


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
async def test_no_body_breaks_the_server(client: httpx.AsyncClient, data: Any) -> None:
    path = data.draw(st.sampled_from([CHAT, COMPLETION, "/tokenize", "/detokenize"]))
    kinds = {CHAT: ChatCompletionRequest, COMPLETION: CompletionRequest}
    known = kinds.get(path, ChatCompletionRequest).__struct_fields__
    names = [*known, "tokens", "prompt"]
    fields = data.draw(st.dictionaries(st.sampled_from(names), junk, max_size=4))
    body = {"max_tokens": 3, **BASE.get(path, {}), **fields}
    if isinstance(body.get("n"), int) and body["n"] > 10:
        body["n"] = 10**9
    response = await client.post(path, content=json.dumps(body), headers=JSON)
    assert response.status_code in ALLOWED, (body, response.text)
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert not LEAKS.search(response.text), response.text
