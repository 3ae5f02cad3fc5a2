"""Progress of a download, served over HTTP on the pod's internal port, for the operator's status.

A thread serves it, so that the download itself stays plain blocking code. Nothing here may ever stop a download: a port
that is taken costs the progress in the status and no more.
"""

from __future__ import annotations

import hmac
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import msgspec

from blade_llm.hub.model import Progress
from blade_protocol import environment, headers, paths
from blade_protocol.fetch import FetchProgress

WINDOW_S: Final = 15.0
"""The speed is the mean over this time."""
SETTLE_S: Final = 0.5
"""Bytes that were there before a download continued are reported within its first moments, and are no speed."""
REQUEST_TIMEOUT_S: Final = 5.0


class Meter:
    """A progress callback that remembers how far the download is and how fast it was lately. Thread-safe."""

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: Progress | None = None
        self._began = 0.0
        self._samples: deque[tuple[float, int]] = deque()
        """(time, bytes there), at most one each ``SETTLE_S``, none older than the window but the first."""
        self._earlier = Progress(0, 0, "", 0, 0)
        """Models that are there already."""

    def next_model(self) -> None:
        """Add what follows to what is there: another model is downloaded after this one."""
        with self._lock:
            if (latest := self._latest) is not None:
                self._earlier = replace(latest, done_bytes=latest.total_bytes, files_done=latest.files_total)

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            progress = _sum(self._earlier, progress)
            now, sample = self._clock(), progress.done_bytes
            if self._latest is None:
                self._began = now
            self._latest = progress
            if now - self._began < SETTLE_S:
                self._samples.clear()
            if not self._samples or now - self._samples[-1][0] >= SETTLE_S:
                self._samples.append((now, sample))

    def read(self) -> FetchProgress:
        """How far it is now."""
        with self._lock:
            if self._latest is None:
                return FetchProgress(model=self._model)
            latest = self._latest
            return FetchProgress(
                model=self._model,
                files=latest.files_total,
                files_done=latest.files_done,
                bytes=latest.total_bytes,
                bytes_done=latest.done_bytes,
                bytes_per_second=self._speed(latest.done_bytes),
            )

    def _speed(self, done: int) -> int:
        now = self._clock()
        while len(self._samples) > 1 and self._samples[1][0] <= now - WINDOW_S:
            self._samples.popleft()
        began, first = self._samples[0]
        return max(0, round((done - first) / max(SETTLE_S, now - began)))


def _sum(earlier: Progress, progress: Progress) -> Progress:
    return replace(
        progress,
        done_bytes=earlier.done_bytes + progress.done_bytes,
        total_bytes=earlier.total_bytes + progress.total_bytes,
        files_done=earlier.files_done + progress.files_done,
        files_total=earlier.files_total + progress.files_total,
    )


@contextmanager
def serve_progress(meter: Meter) -> Iterator[int | None]:
    """Serve ``GET /internal/fetch`` on ``$BLADE_HOST:$BLADE_INTERNAL_PORT`` while the context is open.

    Yields the port, or None where there is nothing to serve on: without ``BLADE_INTERNAL_PORT`` nobody polls. As with
    the engine, the token of ``BLADE_INTERNAL_TOKEN_FILE`` is required, and without one only this machine may poll.
    """
    server = _bind(meter)
    if server is None:
        yield None
        return
    threading.Thread(target=server.serve_forever, args=(0.05,), name="fetch-progress", daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _bind(meter: Meter) -> ThreadingHTTPServer | None:
    port = os.environ.get(environment.INTERNAL_PORT)
    if not port:
        return None
    has_token = bool(os.environ.get(environment.INTERNAL_TOKEN_FILE))
    host = os.environ.get(environment.HOST) or "127.0.0.1"

    class Handler(_Handler):
        pass

    Handler.meter = meter
    try:
        return _Server((host if has_token else "127.0.0.1", int(port)), Handler)
    except (OSError, ValueError, OverflowError) as error:
        print(f"blade_llm_fetch: cannot tell the progress on port {port}: {error}", file=sys.stderr)
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing of clients that disconnect: the log is the download's."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    meter: Meter
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        if "Origin" in self.headers:
            self._respond(403, b'{"error": {"message": "this is not for pages in a browser"}}')
        elif not _is_allowed(self.headers.get(headers.INTERNAL_TOKEN, "")):
            self._respond(401, b'{"error": {"message": "send the internal token", "code": "invalid_token"}}')
        elif self.path != paths.INTERNAL_FETCH:
            self._respond(404, b'{"error": {"message": "only the download can be asked for here"}}')
        else:
            self._respond(200, msgspec.json.encode(self.meter.read()))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the log is the download's."""

    def _respond(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _is_allowed(given: str) -> bool:
    """Whether ``given`` is the token as it is in its file now; a file that cannot be read lets nobody in."""
    path = os.environ.get(environment.INTERNAL_TOKEN_FILE)
    if not path:
        return True
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return False
    return bool(token) and hmac.compare_digest(given.encode(), token.encode())
