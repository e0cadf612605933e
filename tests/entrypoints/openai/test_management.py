"""The small endpoints, documentation, middlewares and the log."""

import logging
from typing import Any

import httpx
import pytest

from tests.v1.engine.fake import EOS, VOCAB
from vllm import envs
from vllm.entrypoints.openai.api_server import ROUTES
from vllm.entrypoints.openai.server import configure_logging
from vllm.exceptions import ConfigError
from vllm.version import __version__

BODY = {"prompt": "[[canary-out]]"}


async def test_open_endpoints(client: httpx.AsyncClient) -> None:
    for method in ("GET", "POST"):
        response = await client.request(method, "/ping")
        assert (response.status_code, response.content) == (200, b"")
    response = await client.get("/health")
    assert (response.status_code, response.content) == (200, b"")
    assert (await client.get("/version")).json() == {"version": __version__}
    assert (await client.get("/load")).json() == {"server_load": 0}


async def test_models(client: httpx.AsyncClient) -> None:
    body = (await client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["tiny", "alias"]
    card = body["data"][0]
    assert (card["object"], card["owned_by"], card["parent"]) == ("model", "vllm", None)
    assert card["max_model_len"] == 512
    permission = card["permission"][0]
    assert permission.pop("id").startswith("modelperm-")
    assert permission.pop("created") == card["created"]
    assert permission == {
        "object": "model_permission",
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }


async def test_tokenize(client: httpx.AsyncClient) -> None:
    async def tokenize(**body: Any) -> Any:
        response = await client.post("/tokenize", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    right = {"count": 2, "max_model_len": 512, "tokens": [72, 105], "token_strs": None}
    assert await tokenize(prompt="Hi") == right
    assert (await tokenize(prompt="Hi", return_token_strs=True))["token_strs"] == ["H", "i"]
    assert (await tokenize(prompt="<eos>"))["tokens"] == [EOS]
    assert (await tokenize(prompt=""))["tokens"] == []
    assert (await tokenize(prompt="x" * 100_000))["count"] == 100_000
    messages = [{"role": "user", "content": "Hi<eos>"}]
    with_prompt = (await tokenize(messages=messages))["tokens"]
    without = (await tokenize(messages=messages, add_generation_prompt=False))["tokens"]
    assert with_prompt[: len(without)] == without
    assert bytes(i for i in with_prompt if i < 256) == b"user\nHi<eos>\nassistant\n"


async def test_detokenize(client: httpx.AsyncClient) -> None:
    async def detokenize(tokens: Any, status: int = 200) -> Any:
        response = await client.post("/detokenize", json={"tokens": tokens})
        assert response.status_code == status, response.text
        return response.json()

    assert await detokenize([72, 105, EOS]) == {"prompt": "Hi<eos>"}
    assert await detokenize([]) == {"prompt": ""}
    assert await detokenize([97] * 50_000) == {"prompt": "a" * 50_000}
    for tokens in ([-1], [VOCAB], [2**63], [1.5], ["a"], None, [True], 7):
        assert (await detokenize(tokens, 400))["error"]["param"].startswith("tokens")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_token_endpoints_refuse(client: httpx.AsyncClient, path: str) -> None:
    known = {"/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [1]}}[path]
    response = await client.post(path, json={**known, "model": "other"})
    assert response.status_code == 404
    assert (await client.post(path, json={})).status_code == 400
    both = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    assert (await client.post("/tokenize", json=both)).json()["error"]["param"] == "prompt"
    tools = {"prompt": "a", "tools": [{}]}
    assert (await client.post("/tokenize", json=tools)).json()["error"]["param"] == "tools"


async def test_unknown_routes(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "Not Found"
    assert response.json()["error"]["code"] == 404
    response = await client.get("/v1/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["type"] == "Method Not Allowed"


async def test_metrics(client: httpx.AsyncClient) -> None:
    await client.post("/v1/completions", json=BODY)
    await client.post("/v1/completions", json={"prompt": 3})
    await client.get("/nothing")
    await client.get("/health")
    from prometheus_client.parser import text_string_to_metric_families

    text = (await client.get("/metrics")).text
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

    def value(name: str, **labels: str) -> float:
        return samples[name, tuple(sorted(labels.items()))]

    path = {"handler": "/v1/completions", "method": "POST"}
    assert value("http_requests_total", status="2xx", **path) == 1
    assert value("http_requests_total", status="4xx", **path) == 1
    assert value("http_requests_total", handler="none", method="GET", status="4xx") == 1
    assert value("http_request_duration_seconds_count", **path) == 2
    assert value("http_request_duration_highr_seconds_count") == 3
    assert value("http_request_duration_highr_seconds_bucket", le="+Inf") == 3
    assert value("http_request_size_bytes_count", handler="/v1/completions") == 2
    assert not [key for key in samples if "/health" in str(key)]
    engine = {"engine": "0", "model_name": "tiny"}
    assert value("vllm:request_success_total", finished_reason="stop", **engine) == 1
    assert value("vllm:generation_tokens_total", **engine) == len("canary-out") + 1


async def test_docs_cover_every_route(make_client: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(envs, "VLLM_SERVER_DEV_MODE", True)
    client = await make_client()
    document = (await client.get("/openapi.json")).json()
    assert set(document["paths"]) == {row.path for row in ROUTES}
    chat = document["components"]["schemas"]["ChatCompletionRequest"]
    assert "temperature" in chat["properties"]
    assert "tools" not in chat["properties"]
    assert chat["required"] == ["messages"]
    page = (await client.get("/docs")).text
    assert "max_completion_tokens" in page
    assert "//" not in page.replace("<!--", "")
    client = await make_client({"disable_fastapi_docs": True})
    for path in ("/docs", "/openapi.json"):
        assert (await client.get(path)).status_code == 404


async def test_development_endpoints(make_client: Any, monkeypatch: Any) -> None:
    client = await make_client()
    assert (await client.post("/reset_prefix_cache")).status_code == 404
    monkeypatch.setattr(envs, "VLLM_SERVER_DEV_MODE", True)
    client = await make_client()
    assert (await client.post("/reset_prefix_cache")).json() == {"success": True}


# ---- middlewares -------------------------------------------------------------------------------


class Stamp:
    """An ASGI middleware."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def stamped(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"1")]
            await send(message)

        await self.app(scope, receive, stamped)


async def function_middleware(request: Any, call_next: Any) -> Any:
    """A function middleware."""
    response = await call_next(request)
    response.headers["x-function"] = "1"
    return response


async def failing_middleware(request: Any, call_next: Any) -> Any:
    """A broken one."""
    raise RuntimeError("/secret/file.py at 0xdeadbeef")


async def test_middlewares(make_client: Any) -> None:
    here = __name__
    client = await make_client({"middleware": [f"{here}.Stamp", f"{here}.function_middleware"]})
    response = await client.post("/v1/completions", json={**BODY, "stream": True})
    assert (response.headers["x-stamp"], response.headers["x-function"]) == ("1", "1")
    assert response.text.endswith("data: [DONE]\n\n")
    client = await make_client({"middleware": [f"{here}.failing_middleware"]})
    response = await client.get("/v1/models")
    assert response.status_code == 500
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert "secret" not in response.text
    for wrong in ("nothing.here", "plain", f"{here}.BODY"):
        with pytest.raises(ConfigError, match="--middleware"):
            await make_client({"middleware": [wrong]})


# ---- the log -----------------------------------------------------------------------------------


async def test_nothing_of_users_is_logged(client: httpx.AsyncClient, log_records: Any) -> None:
    for body in (BODY, {"prompt": "canary-in", "n": "x"}, {"prompt": "canary-in", "max_tokens": -1},
                 {"prompt": "[[canary-out!fail!]]"}, {"prompt": "canary" * 1000}):  # fmt: skip
        await client.post("/v1/completions", json=body)
        await client.post("/v1/completions", json={**body, "stream": True})
    lines = [r.getMessage() for r in log_records if r.levelno >= logging.INFO]
    assert not [line for line in lines if "canary" in line]


async def test_logged_requests(make_client: Any, log_records: Any) -> None:
    options = {"enable_log_requests": True, "enable_log_outputs": True, "max_log_len": 6}
    client = await make_client(options)
    headers = {"X-Request-Id": "r1"}
    await client.post("/v1/completions", json=BODY, headers=headers)
    await client.post("/v1/completions", json={**BODY, "stream": True}, headers=headers)
    infos = [r.getMessage() for r in log_records if r.levelno == logging.INFO]
    assert len([line for line in infos if line.startswith("Received request cmpl-r1: ")]) == 2
    outputs = [line for line in infos if line.startswith("Output 0 of cmpl-r1 (stop): ")]
    assert outputs == ["Output 0 of cmpl-r1 (stop): 'canary'"] * 2
    assert [line for line in infos if line.startswith("Delta 0 of cmpl-r1: 'c")]


def test_access_log(client: httpx.AsyncClient, log_records: Any) -> None:
    from vllm.entrypoints.openai.cli_args import FrontendArgs

    configure_logging(FrontendArgs(disable_access_log_for_endpoints="/health,/metrics"))
    access = logging.getLogger("uvicorn.access")
    for path in ("/health", "/metrics?x=1", "/v1/models"):
        access.info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", path, "1.1", 200)
    for found in list(access.filters):
        access.removeFilter(found)
    lines = [r.getMessage() for r in log_records]
    assert lines == ['1.2.3.4:5 - "GET /v1/models HTTP/1.1" 200']
