"""What the processes of one router ask each other: their metrics and their state, to show those of all together."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable

import msgspec

from blade_protocol.signals import RouterSignals
from blade_router.signals import merged
from blade_router.workers import Worker

logger = logging.getLogger("blade_router.workers")

ANSWER_SECONDS = 1.0
AGREED = ("_up", "_ratio", "_hit_rate", "_state", "_seconds", "_usage", "_utilization")
"""Ends of the names of gauges that are not the sum of their parts: the largest counts."""


class WorkerStatus(msgspec.Struct):
    """One process of this router."""

    worker: int
    pid: int
    in_flight: int


class WorkerPeers:
    """One worker's view of the others; use it as an async context manager.

    Args:
        render: its own metrics, in Prometheus' text format.
        in_flight: how many requests it has under way.
        signals: its own ``RouterSignals``, as JSON.
    """

    def __init__(
        self, worker: Worker, render: Callable[[], bytes], in_flight: Callable[[], int], signals: Callable[[], bytes]
    ) -> None:
        self._worker = worker
        self._render = render
        self._in_flight = in_flight
        self._signals = signals
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "WorkerPeers":
        self._worker.socket.unlink(missing_ok=True)  # its predecessor's
        self._server = await asyncio.start_unix_server(self._serve, self._worker.socket)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()

    @property
    def index(self) -> int:
        return self._worker.index

    async def metrics(self) -> bytes:
        """Everybody's, added up."""
        return add_up([self._render(), *await self._ask_all(b"metrics\n")])

    async def status(self) -> list[WorkerStatus]:
        """Everybody's, in order; one that does not answer is missing."""
        found = [msgspec.json.decode(answer, type=WorkerStatus) for answer in await self._ask_all(b"status\n")]
        return sorted([self._own(), *found], key=lambda status: status.worker)

    async def signals(self) -> bytes:
        """Everybody's as one, as JSON."""
        texts = [self._signals(), *await self._ask_all(b"signals\n")]
        return msgspec.json.encode(merged([msgspec.json.decode(text, type=RouterSignals) for text in texts]))

    def _own(self) -> WorkerStatus:
        return WorkerStatus(self._worker.index, os.getpid(), self._in_flight())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            asked = await reader.readline()
            if asked == b"metrics\n":
                writer.write(self._render())
            elif asked == b"signals\n":
                writer.write(self._signals())
            else:
                writer.write(msgspec.json.encode(self._own()))
            await writer.drain()

    async def _ask_all(self, question: bytes) -> list[bytes]:
        own = self._worker.socket
        others = [path for path in sorted(self._worker.folder.glob("*.sock")) if path != own]
        answers = await asyncio.gather(*(_ask(str(path), question) for path in others))
        return [answer for answer in answers if answer]


async def _ask(path: str, question: bytes) -> bytes:
    """The answer, empty when there is none in time."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            with contextlib.closing(writer):
                writer.write(question)
                return await reader.read()
    except (OSError, TimeoutError):  # it is being replaced
        return b""


def add_up(texts: list[bytes]) -> bytes:
    """One Prometheus text of several with the same families: counters, histograms and gauges are summed.

    Gauges that say what something is like (``AGREED``) are not: of those the largest counts. A line that makes no
    sense is left out.
    """
    lines: dict[str, float | None] = {}
    gauges: set[str] = set()
    for text in texts:
        for line in text.decode(errors="replace").split("\n"):  # labels may hold whatever else ends a line
            if line.startswith("#"):
                if line.count(" ") < 2:
                    continue
                lines.setdefault(line, None)
                if line.endswith(" gauge"):
                    gauges.add(line.split(" ")[2])
                continue
            sample, _, number = line.rpartition(" ")
            try:
                value = float(number)
            except ValueError:
                continue
            name = sample.partition("{")[0]
            before = lines.get(sample)
            if before is None:
                lines[sample] = value
            elif name in gauges and name.endswith(AGREED):
                lines[sample] = max(before, value)
            else:
                lines[sample] = before + value
    families: dict[str, list[str]] = {}
    family = ""
    for line, total in lines.items():
        if line.startswith("#"):
            family = line.split(" ")[2]
        elif not _belongs(line, family):
            family = next((name for name in families if _belongs(line, name)), family)
        families.setdefault(family, []).append(line if total is None else f"{line} {total!r}")
    return ("\n".join(line for family in families.values() for line in family) + "\n").encode()


def _belongs(sample: str, family: str) -> bool:
    name = sample.partition("{")[0]
    return name in (family, f"{family}_total", f"{family}_bucket", f"{family}_sum", f"{family}_count")
