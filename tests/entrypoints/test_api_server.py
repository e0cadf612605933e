"""The old /generate server."""

import itertools
import json
from typing import Any

import httpx
import pytest

from vllm.entrypoints.api_server import ROUTES, build_legacy_app


@pytest.fixture
async def make_legacy(make_serving: Any) -> Any:
    async def make(options: Any = None, **fields: Any) -> httpx.AsyncClient:
        serving = await make_serving(options, **fields)
        transport = httpx.ASGITransport(build_legacy_app(serving))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")

    return make


async def test_whole_and_streamed(make_legacy: Any) -> None:
    client = await make_legacy()
    body = {"prompt": "[[añb]]", "max_tokens": 20, "temperature": 1.0, "n": 2}
    response = await client.post("/generate", json=body)
    assert response.json() == {"text": ["[[añb]]añb"] * 2}
    response = await client.post("/generate", json={**body, "stream": True, "n": 1})
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert lines[-1] == {"text": ["[[añb]]añb"]}
    texts = [line["text"][0] for line in lines]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert response.headers["content-type"] == "application/x-ndjson"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": 3}, "prompt"), ({"prompt": None}, "prompt"), ({"stream": "x"}, "stream"),
        ({"temperature": -1}, "temperature"), ({"temperature": "x"}, "temperature"),
        ({"n": 1.5}, "n"), ({"stop": [1]}, "stop[0]"), ({"made_up": 1}, "made_up"),
        ({"output_kind": 1}, "output_kind"),
        ({"bad_words_token_ids": [[1]]}, "bad_words_token_ids"),
        ({"stop_token_ids": [9999]}, "stop_token_ids"), ({"max_tokens": True}, "max_tokens"),
    ],
)  # fmt: skip
async def test_refusals(make_legacy: Any, fields: Any, param: str) -> None:
    client = await make_legacy()
    response = await client.post("/generate", json={"prompt": "[[a]]", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


async def test_failure_and_bodies(make_legacy: Any) -> None:
    client = await make_legacy()
    assert (await client.post("/generate", json={"prompt": "[[a!fail!]]"})).status_code == 500
    response = await client.post("/generate", json={"prompt": "[[ab!fail!]]", "stream": True})
    assert json.loads(response.text.splitlines()[-1])["error"]["code"] == 500
    for content in (b"", b"[]", b"{", b'{"prompt": NaN}', b'{"a":' * 100):
        response = await client.post(
            "/generate", content=content, headers={"Content-Type": "application/json"}
        )
        assert response.status_code == 400


async def test_guarded_like_the_other_server(make_legacy: Any) -> None:
    client = await make_legacy({"api_key": ["k"]})
    assert {row.path for row in ROUTES} == {"/generate", "/health"}
    assert (await client.get("/health")).status_code == 200
    body = {"prompt": "[[a]]"}
    assert (await client.post("/generate", json=body)).status_code == 401
    headers = {"Authorization": "Bearer k"}
    assert (await client.post("/generate", json=body, headers=headers)).status_code == 200
    client = await make_legacy()
    response = await client.post("/generate", json=body, headers={"Host": "evil.example"})
    assert response.status_code == 403
