"""`vllm chat` and `vllm complete`: talk to a running server from a terminal.

Answers are shown as they are generated. Ctrl-C stops an answer, at the prompt it quits; so does the
end of the input.
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from vllm import envs
from vllm.config.flags import INT, STR, flag, make_config
from vllm.engine.arg_parser import FlagParser, add_config
from vllm.entrypoints.http_client import HttpClient, HttpError
from vllm.exceptions import ConfigError

HELP = """\
/clear         forget the conversation
/system TEXT   set the system prompt and start again
/help          show this
/quit          leave (so does Ctrl-D)
"""


# What helps against an error of the first request.
_HINTS = {401: "give the server's key with --api-key or OPENAI_API_KEY",
          404: "--url needs the path of the API, as in http://localhost:8000/v1"}
_DESCRIPTIONS = {
    "chat": "Talk to a running server; Ctrl-C stops an answer, /help shows the commands.",
    "complete": "Complete text with a running server; Ctrl-C stops a completion.",
}


@dataclass(frozen=True)
class ClientArgs:
    """The server and the request."""

    url: str = flag("http://localhost:8000/v1", "address of the API")
    model_name: str | None = flag(None, "model to ask; default: the server's first", kind=STR)
    api_key: str | None = flag(
        None, "key of the server; default: the variable OPENAI_API_KEY", kind=STR
    )
    quick: str | None = flag(
        None, "send this one text, print the answer and leave", kind=STR, short=("-q",)
    )
    stats: bool = flag(False, "show time to first token and tokens per second")


@dataclass(frozen=True)
class ChatArgs:
    """The conversation."""

    system_prompt: str | None = flag(None, "instructions for the model", kind=STR)


@dataclass(frozen=True)
class CompleteArgs:
    """The completion."""

    max_tokens: int | None = flag(None, "longest completion in tokens", kind=INT)


def run(command: str, args: list[str]) -> None:
    """Run `vllm chat` or `vllm complete`."""
    parser = FlagParser(prog=f"vllm {command}", description=_DESCRIPTIONS[command])
    specific = ChatArgs if command == "chat" else CompleteArgs
    add_config(parser, "Client", ClientArgs)
    add_config(parser, command.capitalize(), specific)
    given = vars(parser.parse_args(args))
    client = make_config(ClientArgs, given)
    session: _Session
    if command == "chat":
        session = _Chat(client, make_config(ChatArgs, given))
    else:
        session = _Complete(client, make_config(CompleteArgs, given))
    try:
        asyncio.run(_run(session, client))
    except HttpError as error:
        sys.exit(f"vllm {command}: the server answered {error}")
    except (ConnectionError, OSError) as error:
        raise ConfigError(
            f"no server at {client.url} ({error}); start one with `vllm serve`, or give --url."
        )


async def _run(session: "_Session", args: ClientArgs) -> None:
    await session.connect()
    if args.quick is not None:
        await session.answer(args.quick)
        return
    print(f"Using model: {session.model}. {session.greeting}")
    while True:
        try:
            text = _read_line()
        except EOFError:
            print()
            return
        if not text.strip():
            continue
        if text.startswith("/") and session.has_commands:
            if not session.obey(text.strip()):
                return
            continue
        await _answer_or_stop(session, text)


def _read_line() -> str:
    """What the user types. Nothing else runs meanwhile, so the event loop may stand still."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (gives input() editing and history)
    # asyncio's own handler would only note Ctrl-C, and input() would go on waiting.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input("> ")
    finally:
        signal.signal(signal.SIGINT, previous)


async def _answer_or_stop(session: "_Session", text: str) -> None:
    """An error or Ctrl-C ends this answer, not the session."""
    answer = asyncio.ensure_future(session.answer(text))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, answer.cancel)
    try:
        await answer
    except asyncio.CancelledError:
        print(" [stopped]")
    except HttpError as error:
        print(f"The server answered {error}", file=sys.stderr)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@dataclass
class _Session:
    """What chat and complete have in common."""

    args: ClientArgs
    model: str = ""
    greeting: str = ""
    has_commands: bool = False
    client: HttpClient = field(init=False)

    def __post_init__(self) -> None:
        key = self.args.api_key or envs.environ.get("OPENAI_API_KEY") or "EMPTY"
        self.client = HttpClient(self.args.url, api_key=key)

    async def connect(self) -> None:
        """Learn the model's name, which also shows that the server is there."""
        try:
            models = await self.client.get("/models")
        except HttpError as error:
            hint = _HINTS.get(error.status)
            if hint is None:
                raise
            raise ConfigError(f"{self.args.url} answered {error}; {hint}.") from None
        self.model = self.args.model_name or models["data"][0]["id"]

    async def answer(self, text: str) -> None:
        """Send one text and print what comes back."""
        raise NotImplementedError

    def obey(self, command: str) -> bool:
        """Carry out a /command; False to leave."""
        return True

    async def show(self, path: str, body: dict[str, Any]) -> str:
        """Print a stream; returns its text, which ends where the user stopped it."""
        timing = _Timing()
        body = {"model": self.model, "stream": True, **body}
        body["stream_options"] = {"include_usage": True}
        pieces: list[str] = []
        try:
            async for piece in _pieces(self.client.stream(path, body), timing):
                print(piece, end="", flush=True)
                pieces.append(piece)
        finally:
            print()
        if self.args.stats:
            print(timing, file=sys.stderr)
        return "".join(pieces)


class _Chat(_Session):
    """Keeps the conversation."""

    def __init__(self, args: ClientArgs, chat: ChatArgs) -> None:
        super().__init__(args, greeting="/help shows commands.", has_commands=True)
        self._system = chat.system_prompt
        self._history: list[dict[str, str]] = []

    async def answer(self, text: str) -> None:
        system = [{"role": "system", "content": self._system}] if self._system else []
        asked = [*self._history, {"role": "user", "content": text}]
        said = await self.show("/chat/completions", {"messages": [*system, *asked]})
        self._history = [*asked, {"role": "assistant", "content": said}]

    def obey(self, command: str) -> bool:
        name, _, rest = command.partition(" ")
        if name in ("/quit", "/exit"):
            return False
        if name in ("/clear", "/system"):
            self._history = []
            if name == "/system":
                self._system = rest.strip() or None
        else:
            print(HELP if name == "/help" else f"{name} is not a command.\n{HELP}", end="")
        return True


class _Complete(_Session):
    """Every text stands for itself."""

    def __init__(self, args: ClientArgs, complete: CompleteArgs) -> None:
        super().__init__(args, greeting="Type the beginning of a text.")
        self._max_tokens = complete.max_tokens

    async def answer(self, text: str) -> None:
        body: dict[str, Any] = {"prompt": text}
        if self._max_tokens is not None:
            body["max_tokens"] = self._max_tokens
        await self.show("/completions", body)


class _Timing:
    """When the first and the last token came, and how many there were."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._first: float | None = None
        self._last = self._start
        self.num_tokens = 0

    def note(self) -> None:
        """Something arrived."""
        self._last = time.perf_counter()
        self._first = self._first or self._last

    def __str__(self) -> str:
        if self._first is None:
            return "[nothing was generated]"
        ttft = self._first - self._start
        text = f"[TTFT {1000 * ttft:.0f} ms"
        if self.num_tokens > 1 and self._last > self._first:
            speed = (self.num_tokens - 1) / (self._last - self._first)
            text += f", {self.num_tokens} tokens, {speed:.1f} tokens/s"
        return text + "]"


async def _pieces(events: AsyncIterator[bytes], timing: _Timing) -> AsyncIterator[str]:
    """The text in a stream of chunks; reasoning stands between <think> and </think>."""
    is_thinking = False
    async for data in events:
        chunk = json.loads(data)
        if "error" in chunk:
            raise HttpError(int(chunk["error"].get("code") or 500), chunk["error"]["message"])
        if chunk.get("usage"):
            timing.num_tokens = chunk["usage"]["completion_tokens"]
        for choice in chunk["choices"]:
            delta = choice.get("delta") or {"content": choice.get("text")}
            reasoning = delta.get("reasoning") or delta.get("reasoning_content")
            if reasoning:
                timing.note()
                yield reasoning if is_thinking else f"<think>{reasoning}"
                is_thinking = True
            if delta.get("content"):
                timing.note()
                yield f"</think>{delta['content']}" if is_thinking else delta["content"]
                is_thinking = False
    if is_thinking:
        yield "</think>"
