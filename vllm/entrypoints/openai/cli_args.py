"""Flags of the HTTP server. As in the configs, a field is a flag."""

from dataclasses import dataclass
from typing import Any

from vllm import envs
from vllm.config.flags import (
    INT,
    JSON,
    STR,
    STR_LIST,
    flag,
    flags_of,
    later,
    make_config,
    option_of,
)
from vllm.exceptions import ConfigError


@dataclass(frozen=True)
class FrontendArgs:
    """The HTTP server."""

    host: str | None = flag(None, "address to listen on; default 127.0.0.1", kind=STR)
    port: int = flag(8000, "port to listen on")
    uds: str | None = flag(None, "unix socket to listen on instead", kind=STR)
    api_key: list[str] | None = flag(
        None, "keys that requests may carry; beats VLLM_API_KEY", kind=STR_LIST)
    api_key_file: str | None = flag(None, "file with one key per line", kind=STR)
    insecure: bool = flag(False, "allow another interface than loopback without a key")
    ssl_keyfile: str | None = flag(None, "private key of the server", kind=STR)
    ssl_certfile: str | None = flag(None, "certificate of the server", kind=STR)
    ssl_ca_certs: str | None = flag(None, "certificates that clients are checked with", kind=STR)
    ssl_cert_reqs: int = flag(0, "whether clients need a certificate: 0 no, 1 optional, 2 yes")
    ssl_ciphers: str | None = flag(None, "TLS ciphers", kind=STR)
    enable_ssl_refresh: bool = flag(False, "read the certificate again when its file changes")
    allowed_origins: list[str] = flag([], "CORS origins, as a JSON list", kind=JSON)
    allowed_methods: list[str] = flag(["*"], "CORS methods, as a JSON list", kind=JSON)
    allowed_headers: list[str] = flag(["*"], "CORS headers, as a JSON list", kind=JSON)
    allow_credentials: bool = flag(False, "CORS requests with credentials")
    root_path: str | None = flag(None, "path prefix that a proxy in front removes", kind=STR)
    middleware: list[str] | None = flag(
        None, "ASGI middleware, as module.Class or module.function", kind=STR_LIST,
        is_repeatable=True)
    enable_request_id_headers: bool = flag(False, "X-Request-Id on every response")
    disable_fastapi_docs: bool = flag(False, "no /docs and /openapi.json")
    enable_offline_docs: bool = later(False, "documentation pages without a network")
    uvicorn_log_level: str = flag("info", "log level of the web server", choices=(
        "critical", "error", "warning", "info", "debug", "trace"))
    disable_uvicorn_access_log: bool = flag(False, "no line per HTTP request")
    disable_access_log_for_endpoints: str | None = flag(
        None, "comma-separated paths without a line per request", kind=STR)
    h11_max_incomplete_event_size: int = flag(4194304, "largest header section in bytes")
    h11_max_header_count: int = flag(256, "most headers of a request")
    enable_prompt_tokens_details: bool = flag(False, "cached tokens in usage")
    enable_force_include_usage: bool = flag(False, "usage on every stream")
    enable_server_load_tracking: bool = flag(
        False, "count running requests for /load; they are always counted")
    enable_tokenizer_info_endpoint: bool = later(False, "/tokenizer_info")
    enable_per_request_metrics: bool = later(False, "metrics in responses")
    return_tokens_as_token_ids: bool = flag(False, "token_id:N instead of text in logprobs")
    sse_keep_alive_interval: int = flag(0, "seconds between comments on idle streams; 0: none")
    enable_log_requests: bool = flag(False, "log id and parameters of each request")
    disable_log_requests: bool = flag(
        False, "older form: requests are not logged unless asked for",
        note="an older form, requests are not logged unless --enable-log-requests is given")
    enable_log_outputs: bool = flag(False, "log what was generated; needs --enable-log-requests")
    enable_log_deltas: bool = flag(True, "log streamed parts as well")
    max_log_len: int | None = flag(None, "most characters of a prompt in the log", kind=INT)
    log_error_stack: bool = flag(
        envs.VLLM_SERVER_DEV_MODE, "log the stack of request errors; on with VLLM_SERVER_DEV_MODE")
    fingerprint_mode: str = flag("full", "system_fingerprint of responses",
                                 choices=("full", "hash", "custom", "none"))
    fingerprint_value: str | None = flag(None, "the custom fingerprint", kind=STR)
    shutdown_timeout: int = flag(
        30, "seconds that running requests may take after SIGTERM before they are aborted")
    chat_template: str | None = flag(None, "template file or text", kind=STR)
    chat_template_content_format: str = flag(
        "auto", "how templates see content", choices=("auto", "string", "openai"))
    default_chat_template_kwargs: dict[str, Any] | None = flag(
        None, "template arguments; those of a request win", kind=JSON)
    trust_request_chat_template: bool = flag(False, "accept templates in requests")
    trust_request_mm_kwargs: bool = later(False, "media input")
    allow_special_tokens_in_messages: bool = flag(
        False, "special tokens written in messages count as such")
    response_role: str = flag("assistant", "role of generated messages")
    api_server_count: int = later(1, "several API servers", short=("-asc",))
    headless: bool = later(False, "engines without an API server")
    grpc: bool = later(False, "gRPC")
    grpc_port: int | None = later(None, "gRPC", kind=INT)
    tokens_only: bool = later(False, "token-in, token-out endpoints")
    enable_scale_out: bool = later(False, "token-in, token-out endpoints")
    anthropic_disabled_thinking_effort: str = later("auto", "the Messages API")
    enable_flash_late_interaction: bool = later(True, "pooling models")


def frontend_values(given: dict[str, Any]) -> dict[str, Any]:
    """The server's settings from parsed flags, checked. Raises ConfigError."""
    args = make_config(FrontendArgs, given)
    problem = _problem(args)
    if problem is not None:
        raise ConfigError(problem)
    values = {name: getattr(args, name) for name in flags_of(FrontendArgs)}
    values["api_key"] = [*(args.api_key or []), *_keys_of(args.api_key_file)] or None
    return values


_LEAST = {"sse_keep_alive_interval": 0, "shutdown_timeout": 0, "max_log_len": 0,
          "h11_max_incomplete_event_size": 1, "h11_max_header_count": 1}


def _problem(args: FrontendArgs) -> str | None:
    """The first of the settings that can't be or contradict each other."""
    for name, least in _LEAST.items():
        value = getattr(args, name)
        if value is not None and value < least:
            return f"{option_of(name)} is {value}; it must be {least} or more."
    if not 0 <= args.port <= 65535:
        return f"--port is {args.port}; it must be 0 to 65535."
    if args.ssl_cert_reqs not in (0, 1, 2):
        return f"--ssl-cert-reqs is {args.ssl_cert_reqs}; it must be 0, 1 or 2."
    if args.ssl_keyfile and not args.ssl_certfile:
        return "--ssl-keyfile needs --ssl-certfile."
    if args.enable_log_outputs and not args.enable_log_requests:
        return "--enable-log-outputs needs --enable-log-requests."
    if args.enable_log_requests and args.disable_log_requests:
        return "--enable-log-requests and --disable-log-requests contradict each other."
    if (args.fingerprint_mode == "custom") != (args.fingerprint_value is not None):
        return "--fingerprint-mode custom and --fingerprint-value need each other."
    return None


def _keys_of(path: str | None) -> list[str]:
    if path is None:
        return []
    try:
        with open(path, encoding="utf-8") as file:
            keys = [line.strip() for line in file if line.strip()]
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--api-key-file {path} can't be read: {reason}") from error
    if not keys:
        raise ConfigError(f"--api-key-file {path} holds no key.")
    return keys
