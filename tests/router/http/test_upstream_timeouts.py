"""The time-outs of engines' responses, by a clock that the test moves."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from router_support.engine import MockEngine, chunk
from router_support.serving import serving

from blade_router.arguments import Options
from blade_router.http.upstream.connection import Connection
from blade_router.http.upstream.errors import FirstByteTimeout, Stalled

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
FIRST_BYTE, STALL = 600.0, 300.0


class Timer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """An event loop's time and timers."""

    def __init__(self) -> None:
        self._now = 1000.0
        self.timers: list[Timer] = []
        self.armed = 0

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.armed += 1
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    def pass_to(self, seconds: float) -> None:
        """Let time pass until so many seconds after the beginning."""
        now = 1000.0 + seconds
        while due := [each for each in self.timers if each.when <= now and not each.cancelled]:
            timer = min(due, key=lambda each: each.when)
            self.timers.remove(timer)
            self._now = timer.when
            timer.callback()
        self._now = now

    @property
    def pending(self) -> int:
        return sum(not each.cancelled for each in self.timers)


class FakeTransport(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        pass


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def connection(clock: Clock) -> Connection:
    made = Connection()
    made._loop = cast(asyncio.AbstractEventLoop, clock)
    made.connection_made(FakeTransport())
    return made


def send(connection: Connection, first_byte: float = FIRST_BYTE, stall: float = STALL) -> None:
    connection.send(REQUEST, b"", first_byte, stall)


def serve(connection: Connection) -> None:
    connection.data_received(HEAD + chunk(b"x") + END)
    assert connection.complete
    connection.finish()


@pytest.mark.parametrize("stall", [0.0, STALL, 2 * FIRST_BYTE])
async def test_the_first_byte_of_the_body_is_waited_for(connection: Connection, clock: Clock, stall: float) -> None:
    send(connection, FIRST_BYTE, stall)
    connection.data_received(HEAD)
    clock.pass_to(FIRST_BYTE - 1)
    assert not connection.closed
    clock.pass_to(FIRST_BYTE)
    assert connection.closed
    assert isinstance(connection._error, FirstByteTimeout)


@pytest.mark.parametrize("first_byte", [0.0, STALL / 2, FIRST_BYTE])
async def test_a_stall_counts_from_the_last_bytes(connection: Connection, clock: Clock, first_byte: float) -> None:
    send(connection, first_byte)
    connection.data_received(HEAD)
    clock.pass_to(100)
    for now in (100, 390, 680):
        clock.pass_to(now)
        connection.data_received(chunk(b"x"))
    clock.pass_to(680 + STALL - 1)
    assert not connection.closed
    clock.pass_to(680 + STALL)
    assert isinstance(connection._error, Stalled)


async def test_while_the_client_is_slow_nothing_is_expected(connection: Connection, clock: Clock) -> None:
    send(connection)
    connection.data_received(HEAD)
    connection.data_received(chunk(b"x" * (1 << 20)))
    clock.pass_to(5 * STALL)
    assert not connection.closed
    assert await connection.read()
    clock.pass_to(7 * STALL)
    assert isinstance(connection._error, Stalled)


async def test_without_limits_there_is_no_timer(connection: Connection, clock: Clock) -> None:
    send(connection, 0.0, 0.0)
    assert clock.armed == 0


async def test_one_timer_watches_all_exchanges_of_a_connection(connection: Connection, clock: Clock) -> None:
    for now in range(100):
        clock.pass_to(now)
        send(connection)
        serve(connection)
    assert clock.armed == 1
    clock.pass_to(STALL + 1)
    assert clock.pending == 0, "no exchange, nothing to watch"
    send(connection)
    clock.pass_to(STALL + FIRST_BYTE)
    assert not connection.closed
    clock.pass_to(STALL + 1 + FIRST_BYTE)
    assert isinstance(connection._error, FirstByteTimeout)


async def test_the_timer_of_a_long_limit_does_not_delay_a_short_one(connection: Connection, clock: Clock) -> None:
    send(connection)
    serve(connection)
    send(connection, 1.0, 1.0)
    clock.pass_to(1.0)
    assert isinstance(connection._error, FirstByteTimeout)


@pytest.mark.parametrize(
    "close", [lambda each: each.connection_lost(None), lambda each: each.abort(ConnectionAbortedError())]
)
@pytest.mark.parametrize("idle", [False, True])
async def test_a_closed_connection_is_not_held_by_its_timer(
    connection: Connection, clock: Clock, close: Callable[[Connection], object], idle: bool
) -> None:
    send(connection)
    if idle:
        serve(connection)
    close(connection)
    assert clock.pending == 0


async def test_they_are_on_by_default() -> None:
    """Not shorter than what OpenAI's clients wait, nor than what an engine thinks in silence."""
    options = Options()
    assert (options.first_byte_timeout, options.stall_timeout) == (600.0, 300.0)
    async with MockEngine("a") as engine, serving(engine) as router:
        assert (await router.chat()).status_code == 200
        (connection,) = router.router.endpoints.all[0].pool._idle
        assert (connection._first_byte_timeout, connection._stall_timeout) == (600.0, 300.0)
