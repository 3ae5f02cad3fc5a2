"""The leader's side of the link: lets machines in, starts them together, and notices when one is lost.

A thread of its own runs it, so that it hears the others while rank 0 computes. Whoever is no machine of this engine
costs a connection for some seconds, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

import msgspec

from blade_llm.engine.messages import EngineFailure
from blade_llm.engine.nodes.address import Address
from blade_llm.engine.nodes.connection import Connection, GoneError, Pace, Ticker
from blade_llm.engine.nodes.identity import Identity
from blade_llm.engine.nodes.messages import (
    MAX_JOIN_BYTES,
    NONCE_BYTES,
    PROTOCOL,
    Beat,
    Challenge,
    Ending,
    Join,
    RankLost,
    Refused,
    Welcome,
    proof_of,
    proven,
)
from blade_llm.models.errors import UnsupportedSettingError
from blade_llm.parallel.layout import RankLayout

logger = logging.getLogger(__name__)
OnLost = Callable[[int, EngineFailure, bool], None]
"""Called with a rank of the machine that is lost, why (it names the machine), and whether it only follows from
another rank's loss."""
_T = TypeVar("_T")
_SPARE_CONNECTIONS: Final = 32
"""Beyond one a machine, for those that are refused and for strangers."""
_CHECK_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 2.0


class _Seat:
    """A machine that was let in."""

    def __init__(self, node: int, connection: Connection, nonce: bytes) -> None:
        self.node, self.connection, self.nonce = node, connection, nonce


class Leader:
    """Listens at ``address`` for the machines 1 .. n-1 of ``layout``. Its methods are for any thread."""

    def __init__(
        self, address: Address, layout: RankLayout, identity: Identity, token: bytes = b"", pace: Pace | None = None
    ) -> None:
        """``token``: the machines' common secret; empty: whoever reaches the port may join.

        Raises :class:`~blade_llm.models.errors.UnsupportedSettingError`: it cannot listen there.
        """
        self._address, self._layout, self._identity, self._token = address, layout, identity, token
        self._pace = pace or Pace()
        self._listening = _listen(address)
        self.host: str = self._listening.getsockname()[0]
        """The IP address it listens on, perhaps 0.0.0.0."""
        self._seats: dict[int, _Seat] = {}
        self._open: set[Connection] = set()
        self._refusals: dict[int, str] = {}
        """The last one of each machine."""
        self._started = self._serving = self._closed = False
        self._on_lost: OnLost | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="machines", daemon=True)
        self._thread.start()
        if not token and not _is_loopback(self.host):
            logger.warning(
                "whoever reaches %s can join this engine; name a file with a secret of all its machines in "
                "BLADE_INTERNAL_TOKEN_FILE, or let nobody else into their network",
                address,
            )

    def admit(self, welcome: Welcome, timeout: float, check: Callable[[], None]) -> None:
        """Wait until all machines are there, and start them with ``welcome``.

        ``check`` is called meanwhile, and may raise. Raises
        :class:`~blade_llm.models.errors.UnsupportedSettingError` when they are not all there after ``timeout`` seconds.
        """
        logger.info("waiting at %s for %d more machine(s)", self._address, self._layout.nodes - 1)
        deadline = time.monotonic() + timeout
        while not self._call(lambda: self._start(welcome)):
            check()
            if time.monotonic() > deadline:
                raise UnsupportedSettingError(self._call(lambda: self._missing_message(timeout)))
            time.sleep(_CHECK_SECONDS)

    def watch(self, on_lost: OnLost) -> None:
        """Call ``on_lost`` for every rank or machine that is lost after :meth:`admit`, from another thread."""
        self._on_lost = on_lost

    def place_of(self, rank: int) -> str:
        """What messages call the machine of ``rank``; empty: it is this one."""
        if (node := self._layout.node_of(rank)) == 0:
            return ""
        seat = self._seats.get(node)  # one look, while the loop's thread may change it
        return f"machine {node}" if seat is None else _place(seat)

    def serving(self) -> None:
        """All ranks are ready: whoever is silent now is lost soon."""
        self._serving = True

    def end(self, message: str) -> None:
        """Let the machines know why the replica ends."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._send_all, Ending(message=message))

    def close(self) -> None:
        """Leave. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)

    def _call(self, function: Callable[[], _T]) -> _T:
        """Call it in the loop's thread."""
        result: Future[_T] = Future()

        def call() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return result.result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, sock=self._listening))
        ticking = self._loop.create_task(self._tick())
        try:
            self._loop.run_forever()
            ticking.cancel()
            server.close()
            self._loop.run_until_complete(self._hang_up())
        finally:
            self._loop.close()

    async def _hang_up(self) -> None:
        self._send_all(Ending(message="its engine was stopped"))
        await asyncio.gather(*(connection.close() for connection in self._open), return_exceptions=True)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, welcome: Welcome) -> bool:
        if len(self._seats) < self._layout.nodes - 1:
            return False
        self._started = True
        for seat in self._seats.values():
            proof = proof_of(welcome, seat.nonce, self._token)
            seat.connection.send(msgspec.structs.replace(welcome, proof=proof))
        return True

    def _missing_message(self, timeout: float) -> str:
        missing = [node for node in range(1, self._layout.nodes) if node not in self._seats]
        refused = [self._refusals[node] for node in missing if node in self._refusals]
        message = f"{_names(missing)} did not join within {timeout:g} s"
        if refused:
            return f"{message}: {'; '.join(refused)}"
        return (
            f"{message}; start it with the same command and --node_rank {missing[0]}, and test there whether it "
            f"reaches this machine: {self._address.test_command}"
        )

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        if len(self._open) >= self._layout.nodes + _SPARE_CONNECTIONS:
            await connection.close()
            return
        self._open.add(connection)
        try:
            seat = await self._let_in(connection)
            if seat is not None:
                await self._hear(seat)
        except GoneError as error:
            logger.debug("%s connected and is no machine of this engine: %s", connection.peer, error)
        finally:
            self._open.discard(connection)
            await connection.close()

    async def _let_in(self, connection: Connection) -> _Seat | None:
        """Its seat; None: it was refused. Raises GoneError."""
        nonce = os.urandom(NONCE_BYTES)
        connection.send(Challenge(protocol=PROTOCOL, nonce=nonce))
        try:
            async with asyncio.timeout(self._pace.join):
                join = await connection.receive(MAX_JOIN_BYTES)
        except TimeoutError:
            raise GoneError("it said nothing") from None
        if not isinstance(join, Join):
            raise GoneError("it did not ask to join")
        if (reason := self._refusal(join, nonce)) is None:
            reason = await self._wait_for_seat(join.node_rank)
        if reason is not None:
            self._refuse(connection, join.node_rank, reason)
            return None
        if self._started:
            connection.send(Refused(message="the other machines of the engine run already", again=True))
            return None
        seat = self._seats[join.node_rank] = _Seat(join.node_rank, connection, join.nonce)
        logger.info("machine %d joined from %s", join.node_rank, connection.peer)
        return seat

    def _refusal(self, join: Join, nonce: bytes) -> str | None:
        if not proven(join, nonce, self._token):
            return (
                "has another secret than machine 0: let BLADE_INTERNAL_TOKEN_FILE name a file with the same content on "
                "all machines, or on none"
            )
        if join.nnodes != self._layout.nodes:
            return f"was started with --nnodes {join.nnodes}, machine 0 with --nnodes {self._layout.nodes}"
        if not 1 <= join.node_rank < self._layout.nodes:
            return f"does not exist: --node_rank is 0 to {self._layout.nodes - 1}, and 0 is here"
        if join.num_ranks != self._layout.size:
            return (
                f"was started for {join.num_ranks} ranks, machine 0 for {self._layout.size}: give both the same flags"
            )
        return join.identity.difference(self._identity)

    async def _wait_for_seat(self, node: int) -> str | None:
        """Whoever has the seat may be gone without a word, and then it is free soon. None: it is free."""
        asked = time.monotonic()
        while (holder := self._seats.get(node)) is not None:
            if holder.connection.heard > asked:
                return (
                    f"is there twice: {holder.connection.peer} has joined with --node_rank {node}; give each machine a "
                    "number of its own"
                )
            await asyncio.sleep(_CHECK_SECONDS)
        return None

    def _refuse(self, connection: Connection, node: int, reason: str) -> None:
        message = f"machine {node} at {connection.peer} {reason}"
        logger.error("%s", message)
        if 1 <= node < self._layout.nodes:
            self._refusals[node] = message
        connection.send(Refused(message=message))

    async def _hear(self, seat: _Seat) -> None:
        """Return when the machine is gone."""
        try:
            while True:
                message = await seat.connection.receive()
                if isinstance(message, RankLost):
                    self._lost_rank(seat, message)
                elif isinstance(message, Ending):
                    self._lost_machine(seat, f"ends: {message.message}")
                    return
        except GoneError:
            self._lost_machine(seat, "is gone: it closed the connection, and its own log says why")

    def _lost_rank(self, seat: _Seat, lost: RankLost) -> None:
        if lost.rank not in self._layout.ranks_of_node(seat.node):
            return
        message = f"{_place(seat)}: {lost.failure.message}"
        self._report(lost.rank, msgspec.structs.replace(lost.failure, message=message), lost.consequence)

    def _lost_machine(self, seat: _Seat, how: str) -> None:
        if self._seats.get(seat.node) is not seat:
            return
        del self._seats[seat.node]
        message = f"{_place(seat)} ({ranks_text(self._layout, seat.node)}) {how}"
        if self._started:
            self._report(self._layout.ranks_of_node(seat.node)[0], EngineFailure(message=message), False)
        else:
            logger.warning("%s", message)

    def _report(self, rank: int, failure: EngineFailure, consequence: bool) -> None:
        if self._on_lost is not None and not self._closed:
            self._on_lost(rank, failure, consequence)

    async def _tick(self) -> None:
        ticker = Ticker(self._pace.beat)
        while True:
            late = await ticker.tick()
            self._send_all(Beat(serving=self._serving))
            limit = self._pace.silence if self._serving else self._pace.loading_silence
            now = time.monotonic()
            for seat in list(self._seats.values()):
                seat.connection.heard += late
                if now - seat.connection.heard > limit:
                    self._lost_machine(seat, f"was not heard of for {limit:g} s: it hangs, or the network to it is cut")

    def _send_all(self, message: Beat | Ending) -> None:
        for seat in self._seats.values():
            seat.connection.send(message)


def _place(seat: _Seat) -> str:
    return f"machine {seat.node} at {seat.connection.peer}"


def ranks_text(layout: RankLayout, node: int) -> str:
    """``rank 1``, or ``ranks 2 to 3``."""
    ranks = layout.ranks_of_node(node)
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def _names(nodes: list[int]) -> str:
    return f"machine{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"


def _listen(address: Address) -> socket.socket:
    """A socket that listens at ``address``; where the host is a name for an address elsewhere, on all of this one's."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UnsupportedSettingError(f"--dist_init_addr {address}: {address.host}: {error.strerror}") from None
    family, _, _, _, target = found[0]
    everywhere = ("::" if family == socket.AF_INET6 else "0.0.0.0", address.port)
    for place in (target, everywhere):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(place)
            sock.listen()
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRNOTAVAIL and place is target:
                continue
            what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {error.strerror}"
            raise UnsupportedSettingError(
                f"--dist_init_addr {address}: the port {what}; give all machines another, or stop what listens there"
            ) from None
        return sock
    raise AssertionError("the last address raises")


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"
