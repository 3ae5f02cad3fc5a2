"""The access log: a line of JSON for each request, written in batches by a thread.

It records client, endpoint and cost, and nothing of the content: no prompt, no query, no secret.
"""

import asyncio
import logging
import sys
import time
from datetime import UTC, datetime

import msgspec

from blade_router.http.accept.trusted_proxies import FORWARDED_FOR, TrustedProxies
from blade_router.observability.outcome import MAX_PATH_BYTES, Outcome

logger = logging.getLogger("blade_router.access_log")

FLUSH_SECONDS = 0.25
"""Seconds a line waits at most before it is written."""
MAX_PENDING = 50_000
"""The most lines that wait while the disk is slow; more are dropped, and counted in the log."""


class Line(msgspec.Struct, omit_defaults=True):
    """One request. Durations are in milliseconds; unknown fields are left out."""

    time: str
    """Time of arrival (UTC)."""
    method: str
    path: str
    """Without the query."""
    status: int
    """499: the client left."""
    duration: float
    bytes_in: int
    bytes_out: int
    """Sizes of the bodies."""
    client: str = ""
    """The client's address: as the connection comes from it, or as a trusted proxy reports it."""
    id: str = ""
    trace_id: str = ""
    ttft: float | None = None
    """Time to first byte."""
    endpoint: str = ""
    reason: str = ""
    tries: int = 0
    """The number of endpoints tried."""
    key: str = ""
    """The name of the API key."""
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class AccessLog:
    """Appends to a file, which may be rotated at any time, or writes to standard output (``-``).

    Args:
        proxies: whose word about the client is believed.
    """

    def __init__(self, path: str, proxies: TrustedProxies | None = None) -> None:
        self._path = path
        self._proxies = proxies or TrustedProxies()
        self._pending: list[tuple[float, Line]] = []
        self._dropped = 0
        self._flushing: asyncio.Task[None] | None = None
        self._started = time.time() - time.perf_counter()

    def record(self, outcome: Outcome) -> None:
        """Queue this request's line."""
        if len(self._pending) >= MAX_PENDING:
            self._dropped += 1
            return
        self._pending.append((outcome.started, _line(outcome, self._proxies)))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush(), name="access log")

    async def close(self) -> None:
        """Write the pending lines."""
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.wait((self._flushing,))
        self._write(self._pending)

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            if not self._pending:
                self._flushing = None
                return
            lines, self._pending = self._pending, []
            await asyncio.shield(asyncio.to_thread(self._write, lines))

    def _write(self, lines: list[tuple[float, Line]]) -> None:
        if self._dropped:
            logger.error("%d lines of the access log were dropped: %s is too slow", self._dropped, self._path)
            self._dropped = 0
        if not lines:
            return
        encode = msgspec.json.Encoder().encode
        for started, line in lines:
            came = datetime.fromtimestamp(self._started + started, UTC)
            line.time = came.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        data = b"".join([encode(line) + b"\n" for _, line in lines])
        try:
            if self._path == "-":
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
                return
            with open(self._path, "ab", buffering=0) as file:  # each time: it may have been rotated
                file.write(data)
        except OSError as error:
            logger.error("the access log cannot be written: %s", error)


def _line(outcome: Outcome, proxies: TrustedProxies) -> Line:
    raw, request = outcome.raw, outcome.request
    address = outcome.client.address
    if proxies.trusts(address):
        address = proxies.client(address, [value for name, value in raw.headers if name == FORWARDED_FOR])
    usage = request.usage if request is not None else None
    first_byte = outcome.first_byte
    return Line(
        time="",
        method=raw.method.decode("ascii"),
        path=raw.path[:MAX_PATH_BYTES].decode("ascii"),
        status=outcome.status,
        duration=_milliseconds(outcome.ended - outcome.started),
        bytes_in=raw.body_bytes,
        bytes_out=outcome.client.sent,
        client=address,
        id=request.id.decode("latin-1") if request is not None else "",
        trace_id=outcome.trace_id,
        ttft=_milliseconds(first_byte) if first_byte is not None else None,
        endpoint=request.endpoint if request is not None else "",
        reason=request.route_reason if request is not None else "",
        tries=request.attempts if request is not None else 0,
        key=outcome.key,
        model=(request.fields.model or "")[:256] if request is not None else "",
        prompt_tokens=usage.prompt_tokens if usage is not None else None,
        completion_tokens=usage.completion_tokens if usage is not None else None,
        cached_tokens=usage.cached_tokens if usage is not None else None,
    )


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 2)
