"""Unix sockets that only this user can reach, and messages with a length in front."""

import os
import shutil
import socket
import struct
import tempfile
import time

from vllm.exceptions import ConfigError

UNIX_PATH_MAX = 107
"""Longest path of a unix socket in bytes (the kernel's sun_path minus its final zero)."""

_LENGTH = struct.Struct("<Q")


def make_private_dir(base: str | None) -> str:
    """A new directory with mode 0700 for sockets, under `base` or the system's temp dir."""
    path = tempfile.mkdtemp(prefix="vllm-", dir=base)
    if len(os.fsencode(path)) > UNIX_PATH_MAX - len("/out.sock"):
        os.rmdir(path)
        raise ConfigError(
            f"The directory for sockets, {path}, is too long: a socket's path may have "
            f"{UNIX_PATH_MAX} characters. Set VLLM_RPC_BASE_PATH to a shorter directory."
        )
    return path


def remove_dir(path: str) -> None:
    """Remove a directory of sockets; one that is gone already is fine."""
    shutil.rmtree(path, ignore_errors=True)


def send_message(sock: socket.socket, payload: bytes) -> None:
    """Write one message; pairs with `receive_message`."""
    sock.sendall(_LENGTH.pack(len(payload)) + payload)


def receive_message(sock: socket.socket, timeout_s: float | None = None) -> bytes | None:
    """Read one message; None if the other side closed first. Raises TimeoutError."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    header = _read_exactly(sock, _LENGTH.size, deadline)
    return None if header is None else _read_exactly(sock, _LENGTH.unpack(header)[0], deadline)


def _read_exactly(sock: socket.socket, size: int, deadline: float | None) -> bytes | None:
    chunks, missing = [], size
    while missing:
        if deadline is not None:
            sock.settimeout(max(1e-3, deadline - time.monotonic()))
        try:
            chunk = sock.recv(min(missing, 1 << 20))
        except ConnectionResetError:
            return None
        if not chunk:
            return None
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)
