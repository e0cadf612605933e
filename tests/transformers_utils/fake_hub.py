"""A small Hugging Face hub on loopback: one server is the hub, a second one its file storage.

Speaks what the real client asks for: repository info, tree listing and files by commit; large files
are redirected to the storage host, as the real hub does.
"""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Asked:
    """One request that a server got."""

    server: str
    method: str
    path: str
    token: str | None


@dataclass
class Repo:
    """Commits of files and names (branches, tags) for commits."""

    commits: dict[str, dict[str, bytes]]
    names: dict[str, str]
    large: tuple[str, ...] = (".safetensors", ".gguf")
    gated: bool = False


@dataclass
class FakeHub:
    """`with FakeHub(repos) as hub`: serves until the end of the block."""

    repos: dict[str, Repo]
    asked: list[Asked] = field(default_factory=list)

    def __enter__(self) -> "FakeHub":
        self._servers = [self._serve("hub", "127.0.0.1"), self._serve("storage", "localhost")]
        self.url = f"http://127.0.0.1:{self._servers[0].server_port}"
        self.storage_url = f"http://localhost:{self._servers[1].server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def paths(self, part: str = "org/") -> list[str]:
        return [a.path for a in self.asked if part in a.path]

    def tokens(self, server: str) -> set[str | None]:
        """What came with requests about repositories."""
        return {a.token for a in self.asked if a.server == server and "org/" in a.path}

    def _serve(self, name: str, host: str) -> ThreadingHTTPServer:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(name, self, with_body=True)

            def do_HEAD(self) -> None:
                hub.answer(name, self, with_body=False)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer((host, 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def answer(self, server: str, request: BaseHTTPRequestHandler, with_body: bool) -> None:
        path = unquote(urlsplit(request.path).path)
        token = request.headers.get("authorization")
        self.asked.append(Asked(server, request.command, path, token))
        status, headers, body = self._respond(server, path, token)
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Content-Length", headers.get("X-Size", str(len(body))))
        request.end_headers()
        if with_body:
            request.wfile.write(body)

    def _respond(
        self, server: str, path: str, token: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        if server == "storage":
            repo_id, commit, name = self._split_file(path.removeprefix("/"))
            return 200, {}, self.repos[repo_id].commits[commit][name]
        if path.startswith("/api/models/"):
            return self._api(path.removeprefix("/api/models/"), token)
        if "/resolve/" in path:
            return self._file(path.removeprefix("/"))
        return error(404, "NotFound")  # the client also asks for things that are no models

    def _api(self, path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
        owner, name, *rest = path.split("/")
        repo_id = f"{owner}/{name}"
        repo = self.repos.get(repo_id)
        if repo is None:
            return error(401, "RepoNotFound")
        if repo.gated and token is None:
            return error(401, "GatedRepo")
        revision = rest[1] if rest else "main"
        commit = repo.names.get(revision, revision)
        files = repo.commits.get(commit)
        if files is None:
            return error(404, "RevisionNotFound")
        if rest and rest[0] == "tree":
            return 200, {"Content-Type": "application/json"}, json.dumps(tree(repo, files)).encode()
        info = {"id": repo_id, "sha": commit, "siblings": [{"rfilename": f} for f in files]}
        return 200, {"Content-Type": "application/json"}, json.dumps(info).encode()

    def _file(self, path: str) -> tuple[int, dict[str, str], bytes]:
        repo_id, commit, name = self._split_file(path)
        repo = self.repos[repo_id]
        commit = repo.names.get(commit, commit)
        body = repo.commits[commit].get(name)
        if body is None:
            return error(404, "EntryNotFound")
        headers = {"ETag": f'"{etag(body)}"', "X-Repo-Commit": commit}
        if not name.endswith(repo.large):
            return 200, headers, body
        headers |= {
            "Location": f"{self.storage_url}/{path}",
            "X-Linked-Etag": headers["ETag"],
            "X-Linked-Size": str(len(body)),
        }
        return 302, headers, b""

    def _split_file(self, path: str) -> tuple[str, str, str]:
        owner, repo, _, commit, name = path.split("/", 4)
        return f"{owner}/{repo}", commit, name


def etag(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def tree(repo: Repo, files: dict[str, bytes]) -> list[dict[str, Any]]:
    entries = []
    for name, body in files.items():
        entry: dict[str, Any] = {
            "type": "file", "path": name, "size": len(body), "oid": etag(body)[:40]
        }  # fmt: skip
        if name.endswith(repo.large):
            entry["lfs"] = {"oid": etag(body), "size": len(body), "pointerSize": 134}
        entries.append(entry)
    return entries


def error(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"X-Error-Code": code, "X-Error-Message": code}, b""
