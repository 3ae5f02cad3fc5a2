"""A model hub on loopback: the part of the Hugging Face HTTP interface a download uses, misbehaving to order.

Like the real one it redirects requests for a large file to storage that knows ranges and neither names nor tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Fault:
    """What happens to the next ``times`` requests whose path contains ``path``."""

    path: str
    times: int = 1
    status: int | None = None
    """Respond with this status instead."""
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Close the connection after so many bytes of the body."""
    corrupt: bool = False
    """Change a byte of the body."""
    ignore_range: bool = False
    pause_after: int | None = None
    """After so many bytes of the body, wait until the hub's ``go`` is set."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    range: str | None
    authorization: str | None


class FakeHub:
    """Repositories in memory, behind ``endpoint``."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.tokens: dict[str, str] = {}
        """Token that a gated repository requires."""
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.endpoint = ""
        self.lock = threading.Lock()
        self.go = threading.Event()
        """Lets paused responses continue."""
        self.bytes_per_second: float | None = None
        """How fast each body is sent; None: as fast as it goes."""

    def add(self, repo_id: str, files: dict[str, bytes] | Path, token: str | None = None) -> None:
        if isinstance(files, Path):
            folder = files
            there = (path for path in folder.rglob("*") if path.is_file())
            files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in there}
        self.repositories[repo_id] = files
        if token:
            self.tokens[repo_id] = token

    def fault(self, path: str, **how: object) -> None:
        self.faults.append(Fault(path, **how))  # type: ignore[arg-type]

    def take_fault(self, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.path in path:
                    fault.times -= 1
                    return fault
        return None

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if path in request.path]


def is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf"))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def etag(name: str, data: bytes) -> str:
    return sha256(data) if is_large(name) else blob_id(data)


@contextmanager
def running_hub(host: str = "127.0.0.1", port: int = 0, handler: type[HubHandler] | None = None) -> Iterator[FakeHub]:
    """A hub until the context ends, on a free port unless one is given; ``endpoint`` is what clients shall call it."""
    hub = FakeHub()

    class Handler(handler or HubHandler):  # type: ignore[misc]
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.go.set()
        server.shutdown()
        thread.join()
        server.server_close()


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        headers = self.headers
        with self.hub.lock:
            self.hub.requests.append(Request(self.command, path, headers.get("Range"), headers.get("Authorization")))
        self.fault = self.hub.take_fault(path) or Fault(path)
        if self.fault.status is not None:
            self.respond(self.fault.status, b"{}", self.fault.headers)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.info(match[1], match[2] or "main")
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(match[1], match[2], match[3])
        elif match := re.fullmatch(r"/storage/([0-9a-f]{64})", path):
            self.storage(match[1])
        else:
            self.respond(404, b"{}")

    def repository(self, repo_id: str) -> dict[str, bytes] | None:
        files = self.hub.repositories.get(repo_id)
        token = self.hub.tokens.get(repo_id)
        if files is None:
            self.respond(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return None
        if token and self.headers.get("Authorization") != f"Bearer {token}":
            code = {"X-Error-Code": "GatedRepo"} if self.headers.get("Authorization") else {}
            self.respond(403 if code else 401, b"{}", code)
            return None
        return files

    def info(self, repo_id: str, revision: str) -> None:
        files = self.repository(repo_id)
        if files is None:
            return
        if revision not in ("main", COMMIT):
            self.respond(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = []
        for name, data in files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": blob_id(data)}
            if is_large(name):
                entry["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        self.respond(200, json.dumps({"id": repo_id, "sha": COMMIT, "siblings": siblings, "tags": []}).encode())

    def resolve(self, repo_id: str, revision: str, name: str) -> None:
        files = self.repository(repo_id)
        if files is None:
            return
        if name not in files or revision not in ("main", COMMIT):
            self.respond(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return
        data = files[name]
        headers = {"ETag": f'"{etag(name, data)}"', "X-Repo-Commit": COMMIT, "X-Linked-Size": str(len(data))}
        if is_large(name):
            location = f"{self.hub.endpoint}/storage/{sha256(data)}"
            self.respond(302, b"", {**headers, "X-Linked-ETag": headers["ETag"], "Location": location})
        else:
            self.ranged(data, headers)

    def storage(self, digest: str) -> None:
        every = (data for files in self.hub.repositories.values() for data in files.values())
        self.ranged(next(data for data in every if sha256(data) == digest), {"ETag": f'"{digest}"'})

    def ranged(self, data: bytes, headers: dict[str, str]) -> None:
        if self.fault.corrupt:
            data = data[:-1] + bytes([data[-1] ^ 1])
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if match and not self.fault.ignore_range:
            begin = int(match[1])
            if begin >= len(data):
                self.respond(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            span = {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"}
            self.respond(206, data[begin:], {**headers, **span})
        else:
            self.respond(200, data, {**headers, "Accept-Ranges": "bytes"})

    def respond(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.fault.pause_after is not None:
            self.wfile.write(body[: self.fault.pause_after])
            self.wfile.flush()
            self.hub.go.wait(30)
            body = body[self.fault.pause_after :]
        cut = self.fault.cut_after
        self.send(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True

    def send(self, body: bytes) -> None:
        rate = self.hub.bytes_per_second
        if rate is None:
            self.wfile.write(body)
            return
        step = max(1, int(rate / 20))
        for begin in range(0, len(body), step):
            self.wfile.write(body[begin : begin + step])
            time.sleep(len(body[begin : begin + step]) / rate)
