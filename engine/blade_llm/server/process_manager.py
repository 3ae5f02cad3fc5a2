"""API-server processes beyond the first, as the supervisor sees them: start, command, notice an exit, clean up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from blade_llm.api.common.response_store import ResponseStoreOptions
from blade_llm.api.common.served_model import ModelSource
from blade_llm.api.common.shared_stats import SharedStats
from blade_llm.api.images.serving import ImageServing, NoImages
from blade_llm.api.metrics.names import Aliases
from blade_llm.api.telemetry.payload_log import PayloadOptions
from blade_llm.engine.child_process import describe_exit
from blade_llm.engine.launch import EngineHandle
from blade_llm.engine.start import signals_blocked, write_start
from blade_llm.server.http.access import AccessRules
from blade_llm.server.http.limits import HttpLimits

READY: Final = b"r"
"""Byte that a process sends once it is connected to the engine and can serve."""
_STOP_SECONDS: Final = 10.0


class ApiServerStart(msgspec.Struct, frozen=True, kw_only=True):
    """Supervisor → API-server process, on its standard input: all it needs to start."""

    index: int
    count: int
    """API-server processes of the server."""
    engine: str
    """ZeroMQ endpoint of the engine."""
    heartbeat: int
    """Inherited descriptor of the engine's heartbeat; see :mod:`blade_llm.engine.heartbeat`."""
    model: ModelSource
    public: int
    """Inherited descriptor of its socket, bound and perhaps not yet listening."""
    shared_stats: int
    """Inherited descriptor of the :class:`~blade_llm.api.common.shared_stats.SharedStats`."""
    live_timeout: float
    log_level: str
    strict_fields: bool
    metric_aliases: Aliases
    rules: AccessRules
    limits: HttpLimits
    responses: ResponseStoreOptions
    payloads: PayloadOptions | None = None
    images: ImageServing | NoImages = NoImages()


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """Supervisor → API-server process: accept connections."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Supervisor → API-server process: abort open requests and exit."""

    error: str | None = None
    """Why the server fails, for the clients of open requests; None: it shuts down."""


Command = Serve | Stop
_COMMANDS: Final = msgspec.msgpack.Decoder[Command](Command)


class ApiServerProcess:
    """One more API-server process. Its standard input is one end of a socket pair; end of file means that it exited."""

    def __init__(self, start: ApiServerStart) -> None:
        self._index = start.index
        self._control, theirs = socket.socketpair()
        with theirs, signals_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "blade_llm.server.api_process"],
                stdin=theirs.fileno(),
                pass_fds=(start.public, start.shared_stats, start.heartbeat),
            )
        with contextlib.suppress(OSError), self._control.makefile("wb") as stream:
            write_start(stream, start)
        self._control.setblocking(False)
        self._exiting: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()
        """Set when it can serve, and when it has exited."""

    def watch(self, on_exit: Callable[[str], None]) -> None:
        """Call ``on_exit`` with how the process ended when it does, unless it was commanded to stop."""
        loop = asyncio.get_running_loop()

        def on_readable() -> None:
            with contextlib.suppress(ConnectionError):
                if self._control.recv(1):
                    self.ready.set()
                    return
            loop.remove_reader(self._control)
            self._exiting = loop.create_task(exited())

        async def exited() -> None:
            name = f"API server process {self._index} (pid {self._process.pid})"
            on_exit(describe_exit(name, await self._wait_for_exit()))
            self.ready.set()

        loop.add_reader(self._control, on_readable)

    def send(self, command: Command) -> None:
        """Send a command, unless the process has exited."""
        if isinstance(command, Stop):
            asyncio.get_running_loop().remove_reader(self._control)
        with contextlib.suppress(OSError):
            payload = msgspec.msgpack.encode(command)
            self._control.sendall(len(payload).to_bytes(4, "big") + payload)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    async def close(self) -> None:
        """Wait for its exit after the command to stop; kill it after a while."""
        await self._wait_for_exit()
        self._control.close()

    async def _wait_for_exit(self) -> int:
        deadline = time.monotonic() + _STOP_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110 - another process's end
            await asyncio.sleep(0.01)
        self._process.kill()
        return self._process.wait()


def start_api_servers(
    sockets: Sequence[socket.socket],
    shared_stats: SharedStats,
    engine: EngineHandle,
    model: ModelSource,
    live_timeout: float,
    log_level: str,
    strict_fields: bool,
    metric_aliases: Aliases,
    rules: AccessRules,
    limits: HttpLimits,
    responses: ResponseStoreOptions,
    payloads: PayloadOptions | None = None,
    images: ImageServing | NoImages = NoImages(),  # noqa: B008 (it is frozen)
) -> list[ApiServerProcess]:
    """Start a process for each socket but the first, which is the caller's."""
    return [
        ApiServerProcess(
            ApiServerStart(
                index=index,
                count=len(sockets),
                engine=engine.address,
                heartbeat=engine.heartbeat,
                model=model,
                public=sock.fileno(),
                shared_stats=shared_stats.descriptor,
                live_timeout=live_timeout,
                log_level=log_level,
                strict_fields=strict_fields,
                metric_aliases=metric_aliases,
                rules=rules,
                limits=limits,
                responses=responses,
                payloads=payloads,
                images=images,
            )
        )
        for index, sock in enumerate(sockets)
        if index
    ]


async def read_command(reader: asyncio.StreamReader) -> Command | None:
    """The next command of the supervisor. None: the supervisor has exited."""
    try:
        length = int.from_bytes(await reader.readexactly(4), "big")
        command: Command = _COMMANDS.decode(await reader.readexactly(length))
        return command
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
