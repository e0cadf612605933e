"""Who can reach the server: the address it binds, the keys it asks for, the hosts it answers to.

Invariant: without a key the server is reachable from this machine only, by programs that call it by
a local name, unless the operator says otherwise.
"""

import contextlib
import errno
import hashlib
import hmac
import os
import re
import socket
import stat
from collections.abc import Iterator

from vllm import envs
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.exceptions import ConfigError

DEFAULT_HOST = "127.0.0.1"
_LOCAL_NAMES = frozenset(["localhost", "127.0.0.1", "[::1]"])
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")


class ApiKeys:
    """The keys, as hashes: comparing them tells nothing about them through its duration."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def allow(self, authorization: str | None) -> bool:
        """True if the header carries one of the keys, or none is needed."""
        if not self._digests:
            return True
        scheme, _, key = (authorization or "").partition(" ")
        digest = _digest(key.strip())
        is_known = False
        for known in self._digests:
            is_known |= hmac.compare_digest(digest, known)
        return is_known and scheme.lower() == "bearer"

    def tenant(self, authorization: str | None) -> str | None:
        """What tells the holders of several keys apart; None while there is one key at most.

        Cached prompts are not shared between tenants: how fast an answer begins would tell one what
        another has asked.
        """
        if len(self._digests) < 2:
            return None
        key = (authorization or "").partition(" ")[2].strip()
        return hashlib.sha256(b"tenant" + _digest(key)).hexdigest()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def api_keys(options: FrontendArgs) -> list[str]:
    """The accepted keys; the flag beats the environment."""
    keys = options.api_key or ([envs.VLLM_API_KEY] if envs.VLLM_API_KEY else [])
    return [key for key in keys if key]


def bind_host(options: FrontendArgs) -> str:
    """The address to listen on."""
    return (options.host or DEFAULT_HOST).strip("[]")


def is_local(options: FrontendArgs) -> bool:
    """True if only programs of this machine can connect."""
    host = bind_host(options)
    return options.uds is not None or host in ("localhost", "::1") or host.startswith("127.")


def allowed_hosts(options: FrontendArgs) -> frozenset[str] | None:
    """Host headers to answer; None for all.

    A page in the user's browser can make its own name point to this machine; without a key only
    the name tells its requests from local ones.
    """
    if options.uds is not None or options.insecure or api_keys(options) or not is_local(options):
        return None
    host = bind_host(options)
    return _LOCAL_NAMES | {f"[{host}]" if ":" in host else host}


def host_name(header: str) -> str | None:
    """The name in a Host header in lower case; None if the header is malformed."""
    found = _HOST.fullmatch(header)
    return None if found is None else found[1].lower()


def check_exposure(options: FrontendArgs) -> None:
    """Refuse to be open to a network without a key."""
    if not is_local(options) and not api_keys(options) and not options.insecure:
        raise ConfigError(
            f"--host {bind_host(options)} would open the server to the network without a key. "
            "Set --api-key or VLLM_API_KEY, or allow it with --insecure."
        )


def check_tls(options: FrontendArgs) -> None:
    """Find out now, not when everything else is ready, that a certificate can't be used."""
    if not options.ssl_certfile:
        return
    import ssl

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
        if options.ssl_ca_certs:
            context.load_verify_locations(options.ssl_ca_certs)
        if options.ssl_ciphers:
            context.set_ciphers(options.ssl_ciphers)
    except OSError as error:
        raise ConfigError(f"The files or ciphers of the --ssl flags can't be used: {error}.")


def bind(options: FrontendArgs) -> socket.socket:
    """A bound socket that does not listen yet: until the model is ready, connections fail."""
    if options.uds is not None:
        return _bind_unix(options.uds)
    host = bind_host(options)
    try:
        found = socket.getaddrinfo(host, options.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise ConfigError(f"--host {host} is not an address of this machine: {error.strerror}.")
    family, _, _, _, address = found[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ConfigError(_bind_problem(host, options.port, error))
    return sock


def _bind_unix(path: str) -> socket.socket:
    """A unix socket that this user alone can reach; a stale one is replaced."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            _remove_stale(path)
    except FileNotFoundError:
        pass
    old_mask = os.umask(0o177)
    try:
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise ConfigError(f"--uds {path} can't be bound: {error.strerror}.")
    finally:
        os.umask(old_mask)
    return sock


def _remove_stale(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ConfigError(f"--uds {path} is in use by another server.")


def _bind_problem(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        owner = process_on_port(port)
        used = f" by {owner}" if owner else ""
        return f"Port {port} is in use{used}; stop it or choose another --port."
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this user has; choose a --port above 1023."
    return f"Can't listen on {host} port {port}: {error.strerror}."


def process_on_port(port: int) -> str | None:
    """Name and pid of the process that listens on a port, if it can be seen."""
    inodes = set(_listening_inodes(port))
    for entry in os.scandir("/proc") if inodes else ():
        if entry.name.isdecimal() and inodes.intersection(_socket_inodes(entry.path)):
            try:
                with open(f"{entry.path}/comm", encoding="utf-8") as file:
                    return f"{file.read().strip()} (pid {entry.name})"
            except OSError:
                return None
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            # Columns: number, local address, remote address, state (0A: listening), ..., inode.
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _socket_inodes(process: str) -> Iterator[str]:
    try:
        descriptors = os.listdir(f"{process}/fd")
    except OSError:
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            target = os.readlink(f"{process}/fd/{descriptor}")
            if target.startswith("socket:["):
                yield target[8:-1]
