"""Sibling workers: the processes of one router query each other's metrics and state, to show those of all together."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from blade_protocol.signals import RouterSignals
from blade_router.observability.signals import merge_signals
from blade_router.workers.supervisor import Worker

logger = logging.getLogger("blade_router.workers")

RESPONSE_SECONDS = 1.0
MAX_MERGED_SUFFIXES = ("_up", "_ratio", "_hit_rate", "_state", "_seconds", "_usage", "_utilization")
"""Name suffixes of gauges that are merged by maximum instead of sum."""


class WorkerStatus(msgspec.Struct):
    """One process of this router."""

    worker: int
    pid: int
    in_flight: int


class SiblingWorkers:
    """One worker's server for its siblings, and client of theirs; use it as an async context manager.

    Args:
        render: its own metrics, in Prometheus' text format.
        in_flight: its number of in-flight requests.
        signals: its own ``RouterSignals``, as JSON.
    """

    def __init__(
        self, worker: Worker, render: Callable[[], bytes], in_flight: Callable[[], int], signals: Callable[[], bytes]
    ) -> None:
        self._worker = worker
        self._render = render
        self._in_flight = in_flight
        self._signals = signals
        self.commands: dict[bytes, Callable[[bytes], Awaitable[bytes]]] = {}
        """Further commands that this worker serves, by name; each gets the rest of the line. Those that fail respond
        with nothing."""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "SiblingWorkers":
        self._worker.socket.unlink(missing_ok=True)  # its predecessor's
        self._server = await asyncio.start_unix_server(self._serve, self._worker.socket)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()

    @property
    def index(self) -> int:
        return self._worker.index

    @property
    def place(self) -> str:
        """The name of its socket."""
        return self._worker.socket.name

    async def metrics(self) -> bytes:
        """The merged metrics of all workers."""
        return merge_metrics([self._render(), *await self._query_all(b"metrics\n")])

    async def status(self) -> list[WorkerStatus]:
        """The status of all workers, in order; one that does not respond is missing."""
        found = [msgspec.json.decode(response, type=WorkerStatus) for response in await self._query_all(b"status\n")]
        return sorted([self._own(), *found], key=lambda status: status.worker)

    async def signals(self) -> bytes:
        """The merged signals of all workers, as JSON."""
        texts = [self._signals(), *await self._query_all(b"signals\n")]
        return msgspec.json.encode(merge_signals([msgspec.json.decode(text, type=RouterSignals) for text in texts]))

    async def query_first(self, command: bytes, message: bytes) -> bytes:
        """Send a command of one line to the first worker; empty when there was no response in time."""
        line = command + b" " + message.replace(b"\n", b" ") + b"\n"
        return await _query(str(self._worker.folder / "0.sock"), line)

    async def query_each(self, command: Callable[[str], bytes]) -> list[tuple[str, bytes]]:
        """The response of each of the others that responds in time, with the name of its place; ``command`` returns the
        line for a place."""
        places = [path.name for path in self._others()]
        responses = await asyncio.gather(*(self.query(place, command(place)) for place in places))
        return [(place, response) for place, response in zip(places, responses, strict=True) if response]

    async def query(self, place: str, command: bytes) -> bytes:
        """The response of the worker at that place; empty when there was none in time."""
        return await _query(str(self._worker.folder / place), command)

    def _others(self) -> list[Path]:
        return [path for path in sorted(self._worker.folder.glob("*.sock")) if path != self._worker.socket]

    def _own(self) -> WorkerStatus:
        return WorkerStatus(self._worker.index, os.getpid(), self._in_flight())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            command = await reader.readline()
            name, _, rest = command.partition(b" ")
            if (respond := self.commands.get(name)) is not None:
                with contextlib.suppress(ValueError):
                    writer.write(await respond(rest))
            elif command == b"metrics\n":
                writer.write(self._render())
            elif command == b"signals\n":
                writer.write(self._signals())
            else:
                writer.write(msgspec.json.encode(self._own()))
            await writer.drain()

    async def _query_all(self, command: bytes) -> list[bytes]:
        responses = await asyncio.gather(*(_query(str(path), command) for path in self._others()))
        return [response for response in responses if response]


async def _query(path: str, command: bytes) -> bytes:
    """The response, empty when there is none in time."""
    try:
        async with asyncio.timeout(RESPONSE_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            with contextlib.closing(writer):
                writer.write(command)
                return await reader.read()
    except (OSError, TimeoutError):  # it is being replaced
        return b""


def merge_metrics(texts: list[bytes]) -> bytes:
    """Merge several Prometheus texts with the same families: counters, histograms and gauges are summed.

    Of gauges with a suffix in ``MAX_MERGED_SUFFIXES`` the largest counts instead. Malformed lines are skipped.
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
            elif name in gauges and name.endswith(MAX_MERGED_SUFFIXES):
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
