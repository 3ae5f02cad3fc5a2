"""Machines that check themselves meet at ``--dist_init_addr``, where the engine's machines will.

Machine 0 listens, the others keep trying until it is there. All waiting is bounded, and so is what a stranger can do:
connections, the length of a line, and the time until a first message that makes sense.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from blade_llm.check.ranks.all_reduce import LIMIT_SECONDS, Measured
from blade_llm.check.ranks.messages import (
    FROM_LEADER,
    HELLO,
    MAX_LINE_BYTES,
    PONG,
    RESULT,
    TO_LEADER_ITSELF,
    Hello,
    Measure,
    Ping,
    Pong,
    Refused,
    Result,
    StrangeMessageError,
    Verdict,
    receive,
    send,
)
from blade_llm.engine.nodes.address import Address
from blade_protocol.check import CheckItem

HELLO_SECONDS: Final = 5.0
"""In which who connects must say who it is."""
ANSWER_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.5
MAX_STRANGERS: Final = 64
"""Connections at most that have not said who they are."""
PINGS: Final = 5
_MEETING_ERRORS: Final = (OSError, TimeoutError, StrangeMessageError)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and for how long machines meet."""

    address: Address
    seconds: float
    """How long each waits for the others."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What machine 0 has learned of a machine."""

    hello: Hello
    clock: float = 0.0
    """Seconds that its clock is ahead of machine 0's."""
    measured: Measured = field(default_factory=Measured)

    def __str__(self) -> str:
        return f"{self.hello.node_rank} ({self.hello.host})"


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What machine 0 has learned."""

    place: Place
    nnodes: int
    machines: Mapping[int, Machine]
    """Those that came, machine 0 among them, by number."""
    problem: str = ""
    """Why they do not belong together."""
    seconds: float = 0.0
    """Until all were there."""


MeasureHere = Callable[[str], Awaitable[Measured]]
"""Measures an all-reduce with the others, who meet at an address."""
Judge = Callable[[Meeting], tuple[CheckItem, ...]]


class MeetingError(Exception):
    """This machine did not meet the others; the message says what to do."""


class Leader:
    """Machine 0."""

    def __init__(self, place: Place, own: Hello, measure: MeasureHere, find_address: Callable[[str], str]) -> None:
        """``find_address``: where ranks of this and other machines can meet, by the name of this host."""
        self._place, self._own, self._measure, self._find_address = place, own, measure, find_address
        self._members: dict[int, _Member] = {}
        self._strangers = 0
        self._problem = ""
        self._changed = asyncio.Event()
        self._reached = False
        """Whether this machine reaches itself at the address."""

    async def meet(self, judge: Judge) -> tuple[CheckItem, ...]:
        """Wait for the others, ask them, tell them the items of ``judge``, and return these.

        Raises :class:`MeetingError` where this machine cannot listen.
        """
        start = time.monotonic()
        try:
            server = await asyncio.start_server(self._answer, None, self._place.address.port, limit=MAX_LINE_BYTES)
        except OSError as error:
            raise MeetingError(
                f"machine 0 cannot listen on port {self._place.address.port}: {error.strerror}; end what uses it, or "
                "give all machines another port in --dist_init_addr"
            ) from None
        reaching = asyncio.create_task(self._reach_itself(start + self._place.seconds))
        try:
            await self._wait(start + self._place.seconds)
            waited = time.monotonic() - start
            if self._problem or len(self._members) < self._own.nnodes - 1:
                machines = {member.hello.node_rank: Machine(hello=member.hello) for member in self._members.values()}
            else:
                machines = await self._ask()
            meeting = Meeting(
                place=self._place,
                nnodes=self._own.nnodes,
                machines={0: machines.pop(0, Machine(hello=self._own)), **dict(sorted(machines.items()))},
                problem=self._problem,
                seconds=waited,
            )
            items = judge(meeting)
            for member in self._members.values():
                with contextlib.suppress(*_MEETING_ERRORS):
                    await send(member.writer, Verdict(items=items), ANSWER_SECONDS)
            return items
        finally:
            reaching.cancel()
            server.close()
            for member in self._members.values():
                member.writer.close()

    async def _wait(self, deadline: float) -> None:
        """Until all have come, something is wrong, or the time is over."""
        while not self._problem and not (self._reached and len(self._members) == self._own.nnodes - 1):
            if (remaining := deadline - time.monotonic()) <= 0:
                break
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), remaining)
        if not self._reached:
            self._found(
                f"machine 0 ({self._own.host}) does not reach itself at {self._place.address}; let the name stand for "
                f"it, and test it there with: {self._place.address.test_command}"
            )

    async def _reach_itself(self, deadline: float) -> None:
        """Connect to the address, as the others do: who answers there must be this process."""
        while time.monotonic() < deadline:
            with contextlib.suppress(*_MEETING_ERRORS):
                reader, writer = await _connect(self._place)
                try:
                    await send(writer, self._own, ANSWER_SECONDS)
                    answer = await receive(reader, TO_LEADER_ITSELF, ANSWER_SECONDS)
                finally:
                    writer.close()
                if isinstance(answer, Refused):
                    self._found(answer.problem)
                self._reached = True
                self._changed.set()
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody has connected."""
        if self._strangers >= MAX_STRANGERS:
            writer.close()
            return
        self._strangers += 1
        try:
            hello = await receive(reader, HELLO, HELLO_SECONDS)
            if hello.instance == self._own.instance:
                await send(writer, Pong(time=time.time()), ANSWER_SECONDS)
                writer.close()
            elif problem := self._misfit(hello):
                self._found(problem)
                await send(writer, Refused(problem=problem), ANSWER_SECONDS)
                writer.close()
            else:
                self._members[hello.node_rank] = _Member(hello, reader, writer)
                self._changed.set()
        except _MEETING_ERRORS:
            writer.close()
        finally:
            self._strangers -= 1

    def _found(self, problem: str) -> None:
        self._problem = self._problem or problem
        self._changed.set()

    def _misfit(self, hello: Hello) -> str:
        """Why the machine does not belong to the others."""
        rank, host = hello.node_rank, hello.host
        if hello.nnodes != self._own.nnodes:
            return (
                f"machine {rank} ({host}) has --nnodes {hello.nnodes}, machine 0 ({self._own.host}) {self._own.nnodes}"
                "; give all the same"
            )
        if not 0 <= rank < self._own.nnodes:
            return f"{host} has --node_rank {rank}; with --nnodes {self._own.nnodes} give 0 to {self._own.nnodes - 1}"
        other = self._own if rank == 0 else None
        if (member := self._members.get(rank)) is not None and not member.reader.at_eof():
            other = member.hello
        if other is not None and other.instance != hello.instance:
            return f"two machines have --node_rank {rank}: {other.host} and {host}; give each its own"
        return ""

    async def _ask(self) -> dict[int, Machine]:
        """Clocks one after the other, and then the all-reduce that all measure together."""
        machines = {0: Machine(hello=self._own)}
        for rank, member in self._members.items():
            try:
                machines[rank] = Machine(hello=member.hello, clock=await member.clock())
            except _MEETING_ERRORS as error:
                self._found(f"machine {rank} ({member.hello.host}) left during the check: {_reason(error)}")
                return {number: Machine(hello=each.hello) for number, each in self._members.items() if number != rank}
        address = self._find_address(self._place.address.host)
        ranks = list(self._members)
        measured = await asyncio.gather(
            self._measure(address), *(self._members[rank].measure(address) for rank in ranks)
        )
        return {rank: replace(machines[rank], measured=each) for rank, each in zip([0, *ranks], measured, strict=True)}


@dataclass(frozen=True)
class _Member:
    """A machine that has come."""

    hello: Hello
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def clock(self) -> float:
        """Seconds that its clock is ahead, by the fastest of some answers (Cristian, Distributed Computing 3, 1989)."""
        found: list[tuple[float, float]] = []
        for _ in range(PINGS):
            before = time.time()
            start = time.perf_counter()
            await send(self.writer, Ping(), ANSWER_SECONDS)
            pong = await receive(self.reader, PONG, ANSWER_SECONDS)
            seconds = time.perf_counter() - start
            found.append((seconds, pong.time - (before + seconds / 2)))
        return min(found)[1]

    async def measure(self, address: str) -> Measured:
        """What it measures with the others."""
        try:
            await send(self.writer, Measure(address=address), ANSWER_SECONDS)
            return (await receive(self.reader, RESULT, LIMIT_SECONDS + ANSWER_SECONDS)).measured
        except _MEETING_ERRORS as error:
            return Measured(problem=f"left during the check: {_reason(error)}")


async def join(place: Place, own: Hello, measure: MeasureHere) -> tuple[CheckItem, ...]:
    """Meet machine 0 as another machine, answer it, and return its items.

    Raises :class:`MeetingError` where it is not there in time, or says that this machine does not belong to the others.
    """
    deadline = time.monotonic() + place.seconds
    while True:
        try:
            return await _converse(place, own, measure, deadline)
        except _MEETING_ERRORS as error:
            reason = _reason(error)
        if time.monotonic() >= deadline:
            raise MeetingError(
                f"machine {own.node_rank} ({own.host}) did not meet machine 0 at {place.address} within "
                f"{place.seconds:.0f} s: {reason}; test it here with: {place.address.test_command}"
            )
        await asyncio.sleep(RETRY_SECONDS)


async def _converse(place: Place, own: Hello, measure: MeasureHere, deadline: float) -> tuple[CheckItem, ...]:
    reader, writer = await _connect(place)
    try:
        await send(writer, own, ANSWER_SECONDS)
        # Machine 0 may have begun to wait later than this one, and measures when all are there.
        seconds = max(0.0, deadline - time.monotonic()) + HELLO_SECONDS
        while True:
            message = await receive(reader, FROM_LEADER, seconds)
            if isinstance(message, Refused):
                raise MeetingError(message.problem)
            if isinstance(message, Verdict):
                return message.items
            if isinstance(message, Measure):
                await send(writer, Result(measured=await measure(message.address)), ANSWER_SECONDS)
            else:
                await send(writer, Pong(time=time.time()), ANSWER_SECONDS)
            seconds = LIMIT_SECONDS + 2 * ANSWER_SECONDS
    finally:
        writer.close()


async def _connect(place: Place) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError, TimeoutError too."""
    connecting = asyncio.open_connection(place.address.host, place.address.port, limit=MAX_LINE_BYTES)
    return await asyncio.wait_for(connecting, HELLO_SECONDS)


def _reason(error: BaseException) -> str:
    """An error in words."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, StrangeMessageError):
        return "what answers there is no blade_llm_check"
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        return os.strerror(error.errno)  # asyncio's own words hide it
    return str(getattr(error, "strerror", None) or error)
