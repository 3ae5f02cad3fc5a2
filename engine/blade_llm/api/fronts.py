"""The front processes beyond the first, as the first sees them: start, tell, know when one ends, leave none behind."""

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

from blade_llm.api.board import Board
from blade_llm.api.served_model import ModelSource
from blade_llm.engine.launch import describe_exit
from blade_llm.engine.start import signals_held_back, write_start

READY: Final = b"r"
"""What a front answers once it is connected to the engine and can serve."""
_STOP_SECONDS: Final = 10.0


class FrontStart(msgspec.Struct, frozen=True, kw_only=True):
    """First front → another one, on its standard input: all it needs to start."""

    number: int
    count: int
    """Of all fronts."""
    engine: str
    """The engine's ZeroMQ endpoint."""
    model: ModelSource
    public: int
    """Inherited descriptor of its socket, bound and perhaps not yet listening."""
    board: int
    """Inherited descriptor of the :class:`~blade_llm.api.board.Board`."""
    live_timeout: float
    log_level: str


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """First front → the others: take connections."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """First front → the others: end what is open, and then the process."""

    error: str | None = None
    """Why the server fails, for open requests; None: it shuts down."""


Order = Serve | Stop
_ORDERS: Final = msgspec.msgpack.Decoder[Order](Order)


class Front:
    """One more front process. Its standard input is one end of a socket pair, whose end of file tells of its death."""

    def __init__(self, start: FrontStart) -> None:
        self._number = start.number
        self._control, theirs = socket.socketpair()
        with theirs, signals_held_back():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "blade_llm.api.front"],
                stdin=theirs.fileno(),
                pass_fds=(start.public, start.board),
            )
        with contextlib.suppress(OSError), self._control.makefile("wb") as stream:
            write_start(stream, start)
        self._control.setblocking(False)
        self._ending: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()
        """Set when it can serve, and when it has ended."""

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Call ``on_end`` with how it ended when it does, unless it was told to stop."""
        loop = asyncio.get_running_loop()

        def heard() -> None:
            with contextlib.suppress(ConnectionError):
                if self._control.recv(1):
                    self.ready.set()
                    return
            loop.remove_reader(self._control)
            self._ending = loop.create_task(ended())

        async def ended() -> None:
            name = f"front process {self._number} (pid {self._process.pid})"
            on_end(describe_exit(name, await self._wait()))
            self.ready.set()

        loop.add_reader(self._control, heard)

    def tell(self, order: Order) -> None:
        """Give an order, unless it is gone."""
        if isinstance(order, Stop):
            asyncio.get_running_loop().remove_reader(self._control)
        with contextlib.suppress(OSError):
            payload = msgspec.msgpack.encode(order)
            self._control.sendall(len(payload).to_bytes(4, "big") + payload)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    async def close(self) -> None:
        """Wait for its end after it was told to stop; by force after a while."""
        await self._wait()
        self._control.close()

    async def _wait(self) -> int:
        deadline = time.monotonic() + _STOP_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110 - another process's end
            await asyncio.sleep(0.01)
        self._process.kill()
        return self._process.wait()


def start_fronts(
    sockets: Sequence[socket.socket], board: Board, engine: str, model: ModelSource, live_timeout: float, log_level: str
) -> list[Front]:
    """A front process for each socket but the first, which is the caller's."""
    return [
        Front(
            FrontStart(
                number=number,
                count=len(sockets),
                engine=engine,
                model=model,
                public=sock.fileno(),
                board=board.descriptor,
                live_timeout=live_timeout,
                log_level=log_level,
            )
        )
        for number, sock in enumerate(sockets)
        if number
    ]


async def read_order(reader: asyncio.StreamReader) -> Order | None:
    """The next order, in a front. None: the first front is gone."""
    try:
        length = int.from_bytes(await reader.readexactly(4), "big")
        order: Order = _ORDERS.decode(await reader.readexactly(length))
        return order
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
