"""Adapters of all ranks: rank 0 uses one when all have read their parts of the same content.

All read at once, each on a thread of its own process. Folders change, and machines may have different ones: so every
rank says the digest of what it has read, of which it keeps its part. One that could not read it, or has read something
else, fails the load for all. What is no folder is downloaded before, by every machine
(:mod:`blade_llm.engine.ranks.adapter_fetches`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from blade_llm.engine.adapters import LoadedAdapter
from blade_llm.engine.adapters.entry import CheckedFiles
from blade_llm.engine.ranks.adapter_fetches import AdapterFetches, origin_of
from blade_llm.engine.ranks.adapter_messages import (
    AdapterFetchedMessage,
    AdapterReadMessage,
    ForgetAdapterMessage,
    ReadAdapterMessage,
    decode_reply,
    encode_adapter,
)
from blade_llm.lora.errors import AdapterError

READ_SECONDS: Final = 300.0
"""A rank that has not read an adapter so long after rank 0 has does not get any further."""


class RankMessages(Protocol):
    """The other ranks; :class:`~blade_llm.engine.ranks.processes.RankProcesses` has their processes."""

    def send(self, payload: bytes) -> None:
        """Send a message to all of them without waiting."""

    def receive(self) -> bytes | None:
        """A message of one of them; None: there is none now."""

    def name_of(self, rank: int) -> str:
        """What messages call a rank; where it is on another machine, with that machine."""

    def raise_if_lost(self) -> None:
        """Raise :class:`~blade_llm.engine.ranks.lost.RankFailedError` if one is lost."""


@dataclass(slots=True)
class _Reading:
    """An adapter that is being read."""

    origin: str
    """The id of what each machine has downloaded; empty: it is a folder."""
    own: Future[LoadedAdapter]
    """By rank 0."""
    result: Future[LoadedAdapter] = field(default_factory=Future)
    replies: dict[int, AdapterReadMessage] = field(default_factory=dict)
    """By rank."""
    alone_since: float | None = None
    """When rank 0 was seen to have read it."""


class AdapterRanks:
    """Implements :class:`~blade_llm.engine.adapters.files.OtherRanks` for the further of ``size`` ranks.

    Args:
        fetching: ranks that download for their machines, one of each that is not rank 0's.
        seconds: see :data:`READ_SECONDS`.
    """

    def __init__(
        self,
        ranks: RankMessages,
        size: int,
        *,
        fetching: Sequence[int] = (),
        seconds: float = READ_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ranks = ranks
        self._size = size
        self._seconds = seconds
        self._clock = clock
        self._fetches = AdapterFetches(ranks.send, fetching, ranks.name_of, clock=clock)
        self._reading: dict[int, _Reading] = {}

    def fetch(self, path: str, own: Future[CheckedFiles]) -> Future[CheckedFiles]:
        """See :meth:`~blade_llm.engine.ranks.adapter_fetches.AdapterFetches.fetch`; :meth:`poll` settles it."""
        return self._fetches.fetch(path, own)

    def read(self, number: int, path: str, folder: Path, own: Future[LoadedAdapter]) -> Future[LoadedAdapter]:
        """Let the others read what rank 0 reads as ``own``, in the ``folder`` that was found for ``path``. The result
        is that of ``own`` once all have the same, and :class:`AdapterError`, which names the rank, when one has not;
        :meth:`poll` settles it."""
        message = ReadAdapterMessage(number, str(folder.absolute()), origin_of(path, folder))
        self._ranks.send(encode_adapter(message))
        reading = self._reading[number] = _Reading(message.origin, own)
        return reading.result

    def forget(self, number: int) -> None:
        """Let the others free its memory; no plan that is launched from now on uses it."""
        self._ranks.send(encode_adapter(ForgetAdapterMessage(number)))

    def poll(self) -> None:
        """Take what the others have said meanwhile. Raises :class:`~blade_llm.engine.ranks.lost.RankFailedError`."""
        self._ranks.raise_if_lost()
        while (payload := self._ranks.receive()) is not None:
            reply = decode_reply(payload)
            if isinstance(reply, AdapterFetchedMessage):
                self._fetches.replied(reply)
            elif (reading := self._reading.get(reply.number)) is not None:  # else it has failed already
                reading.replies[reply.rank] = reply
        self._fetches.settle()
        for number, reading in list(self._reading.items()):
            if not reading.own.done():
                continue
            error = reading.own.exception() or self._problem(reading)
            if error is not None:
                del self._reading[number]
                self.forget(number)
                reading.result.set_exception(error)
            elif len(reading.replies) == self._size - 1:
                del self._reading[number]
                reading.result.set_result(reading.own.result())

    def _problem(self, reading: _Reading) -> AdapterError | None:
        """Why it cannot be used, of what rank 0 has read."""
        digest = reading.own.result().digest
        for rank, reply in sorted(reading.replies.items()):
            if reply.error:
                return AdapterError(f"{self._ranks.name_of(rank)}: {reply.error}")
            if reply.digest != digest and reading.origin:
                return AdapterError(
                    f"{self._ranks.name_of(rank)} has another version of {reading.origin} than rank 0: give an id that "
                    "names one, like ORG/NAME@REVISION"
                )
            if reply.digest != digest:
                return AdapterError(
                    f"{self._ranks.name_of(rank)} has read other weights than rank 0: the folder was changed "
                    "meanwhile, or machines have different ones; load the adapter again when all have the same"
                )
        now = self._clock()
        if reading.alone_since is None:
            reading.alone_since = now
        missing = [rank for rank in range(1, self._size) if rank not in reading.replies]
        if missing and now - reading.alone_since > self._seconds:
            return AdapterError(
                f"{self._ranks.name_of(missing[0])} has not read the adapter {self._seconds:g} s after rank 0 did; see "
                "whether it can reach the folder, and load the adapter again"
            )
        return None
