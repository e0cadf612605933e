"""A minimal HTTP client for streamed completions: the same code drives every server.

One connection per request, closed afterwards, so that no server gains from keep-alive.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field


@dataclass
class Timing:
    """Monotonic seconds of one request: sent, and one entry per token-bearing chunk."""

    sent: float
    chunks: list[float] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.chunks[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive chunks."""
        return [b - a for a, b in zip(self.chunks, self.chunks[1:], strict=False)]


async def complete(port: int, prompt: list[int], max_tokens: int, model: str) -> Timing:
    """Stream one greedy completion of token ids and time its chunks.

    Raises RuntimeError if the server answers with an error or with another number of tokens.
    """
    body = json.dumps({
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }).encode()
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    timing = Timing(sent=time.perf_counter())
    try:
        writer.write(head + body)
        await writer.drain()
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{status!r}: {(await reader.read(2000)).decode(errors='replace')}")
        await _read_events(reader, timing)
    finally:
        writer.close()
    if timing.num_tokens != max_tokens:
        raise RuntimeError(f"asked for {max_tokens} tokens, got {timing.num_tokens}")
    return timing


async def _read_events(reader: asyncio.StreamReader, timing: Timing) -> None:
    async for line in reader:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        now = time.perf_counter()
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        if event.get("choices"):
            timing.chunks.append(now)
        if event.get("usage"):
            timing.num_tokens = event["usage"]["completion_tokens"]
