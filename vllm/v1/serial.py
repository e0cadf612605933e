"""Bytes that cross to the engine process and back: one kind byte, then msgpack. No pickle.

Decoding is typed: a frame either becomes a value of `messages.py` or raises.
"""

from typing import TypeAlias

import msgspec

from vllm.v1.messages import EngineCoreOutputs, EngineCoreRequest, UtilityCall

AbortedIds: TypeAlias = list[str]
EngineCoreMessage: TypeAlias = EngineCoreRequest | AbortedIds | UtilityCall
"""What a front end sends: a request, ids to abort, or a control call."""


class EngineReady(msgspec.Struct, array_like=True):
    """First word of an engine process that can serve.

    `max_request_tokens` is how many tokens of one request the KV pool can hold; `phases` are the
    seconds that each part of the start took, in order; `kernels` says what the model runs on.
    """

    num_gpu_blocks: int
    max_request_tokens: int
    phases: dict[str, float]
    kernels: str = ""


class EngineFailed(msgspec.Struct, array_like=True):
    """First word of an engine process that can't; `kind` is the class of the error."""

    kind: str
    message: str


_ENCODER = msgspec.msgpack.Encoder()
_KINDS: dict[type, bytes] = {EngineCoreRequest: b"R", list: b"A", UtilityCall: b"U"}
_DECODERS: dict[int, msgspec.msgpack.Decoder[EngineCoreMessage]] = {
    ord("R"): msgspec.msgpack.Decoder(EngineCoreRequest),
    ord("A"): msgspec.msgpack.Decoder(AbortedIds),
    ord("U"): msgspec.msgpack.Decoder(UtilityCall),
}
_OUTPUTS = msgspec.msgpack.Decoder(EngineCoreOutputs)


def encode_message(message: EngineCoreMessage) -> bytes:
    """Front end side."""
    return _KINDS[type(message)] + _ENCODER.encode(message)


def decode_message(frame: bytes) -> EngineCoreMessage:
    """Engine side. Raises ValueError if the frame is no message."""
    decoder = _DECODERS.get(frame[0]) if frame else None
    if decoder is None:
        raise ValueError("the frame has no known kind")
    return decoder.decode(memoryview(frame)[1:])


def request_id_in(frame: bytes) -> str | None:
    """The id of the request in a frame that `decode_message` refused, if it has one."""
    try:
        fields = msgspec.msgpack.decode(memoryview(frame)[1:])
    except msgspec.MsgspecError:
        return None
    is_request = frame[:1] == _KINDS[EngineCoreRequest] and isinstance(fields, list)
    return fields[0] if is_request and fields and isinstance(fields[0], str) else None


def encode_outputs(outputs: EngineCoreOutputs) -> bytes:
    """Engine side."""
    return _ENCODER.encode(outputs)


def decode_outputs(frame: bytes) -> EngineCoreOutputs:
    """Front end side."""
    return _OUTPUTS.decode(frame)


def encode_first_word(word: EngineReady | EngineFailed) -> bytes:
    """Engine side, once, over the control socket."""
    return (b"+" if isinstance(word, EngineReady) else b"-") + _ENCODER.encode(word)


def decode_first_word(frame: bytes) -> EngineReady | EngineFailed:
    """Front end side."""
    kind: type[EngineReady | EngineFailed] = EngineReady if frame[:1] == b"+" else EngineFailed
    return msgspec.msgpack.decode(memoryview(frame)[1:], type=kind)
