"""The parts of the other processes of a router, over the sockets that they have for each other.

They are queried by the process that has viewers, each second; without viewers nobody is.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from blade_router.ui.board import Board
from blade_router.ui.parts import Known, OwnPart, Part
from blade_router.ui.service_report import ServiceReport

PART = b"ui"
SERVICE = b"service"
REPORTED = b"reported"
"""Commands."""

_decode = msgspec.json.Decoder(Part).decode
_decode_known = msgspec.json.Decoder(Known).decode
_encode = msgspec.json.Encoder().encode


class Siblings(Protocol):
    """The other processes."""

    commands: dict[bytes, Callable[[bytes], Awaitable[bytes]]]

    @property
    def place(self) -> str:
        """Where this process is."""
        ...

    async def query_each(self, command: Callable[[str], bytes]) -> list[tuple[str, bytes]]:
        """The response of each that responds in time, with its place; ``command`` returns the line for a place."""
        ...

    async def query(self, place: str, command: bytes) -> bytes:
        """The response of the one at that place; empty when there is none in time."""
        ...


class SiblingParts:
    """Queries the others, and answers them."""

    def __init__(self, siblings: Siblings, own: OwnPart, report: ServiceReport, clock: Callable[[], float]) -> None:
        self._siblings = siblings
        self._own = own
        self._report = report
        self._clock = clock
        siblings.commands[PART] = self._respond
        siblings.commands[REPORTED] = self._fetch_report
        siblings.commands[SERVICE] = self._respond_with_service

    async def announce(self) -> None:
        """There is another report of the service: the others get it from here, in case this process does not last."""
        await self._siblings.query_each(lambda place: b"%b %b\n" % (REPORTED, self._siblings.place.encode()))

    async def query(self, board: Board) -> list[tuple[str, Part]]:
        """What is new in each of them; a newer report of the service is taken over."""
        responses = await self._siblings.query_each(lambda place: b"%b %b\n" % (PART, _encode(board.known(place))))
        parts: list[tuple[str, Part]] = []
        newest, holder = self._report.reported_at, ""
        for place, response in responses:
            with contextlib.suppress(msgspec.DecodeError):
                part = _decode(response)
                parts.append((place, part))
                if part.reported_at > newest:
                    newest, holder = part.reported_at, place
        if holder:
            await self._fetch_report(holder.encode())
        return parts

    async def _respond(self, line: bytes) -> bytes:
        return _encode(self._own.since(_decode_known(line), self._clock(), self._report.reported_at))

    async def _fetch_report(self, line: bytes) -> bytes:
        """Take over the report of the process at a place."""
        place = line.strip().decode()
        if place.removesuffix(".sock").isdecimal():
            with contextlib.suppress(ValueError):
                self._report.take(await self._siblings.query(place, SERVICE + b" \n"))
        return b"\n"

    async def _respond_with_service(self, line: bytes) -> bytes:
        return self._report.full or b""
