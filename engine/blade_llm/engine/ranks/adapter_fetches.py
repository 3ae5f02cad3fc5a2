"""Adapters of a hub, bucket or registry on several machines: each machine downloads one for itself, once.

Rank 0's machine is first: what it was given may also be a folder, which has to be on the others then. One rank of each
other machine downloads, and the machine's ranks find it in the cache when they are to read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from blade_llm.engine.adapters.entry import CheckedFiles
from blade_llm.engine.adapters.paths import normalized
from blade_llm.engine.ranks.adapter_messages import AdapterFetchedMessage, FetchAdapterMessage, encode_adapter
from blade_llm.lora.errors import AdapterError

FETCH_SECONDS: Final = 3600.0
"""A machine that has not downloaded an adapter so long after rank 0's has does not get any further. A connection that
brings nothing ends far earlier."""


@dataclass(slots=True)
class _Fetch:
    """An adapter that machines download."""

    path: str
    own: Future[CheckedFiles]
    """By rank 0's machine."""
    result: Future[CheckedFiles] = field(default_factory=Future)
    missing: set[int] = field(default_factory=set)
    """Ranks whose machines have not got it yet."""
    sent: float | None = None
    """When the others were asked."""


class AdapterFetches:
    """One thread calls everything.

    Args:
        send: sends a message to all ranks.
        ranks: those that download, one of each other machine; empty: there are no other machines.
        name_of: what messages call a rank.
        seconds: see :data:`FETCH_SECONDS`.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        ranks: Sequence[int],
        name_of: Callable[[int], str],
        *,
        seconds: float = FETCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._ranks = ranks
        self._name_of = name_of
        self._seconds = seconds
        self._clock = clock
        self._numbers = 0
        self._under_way: dict[int, _Fetch] = {}

    def fetch(self, path: str, own: Future[CheckedFiles]) -> Future[CheckedFiles]:
        """What ``own`` finds for ``path``, once all machines have it; :class:`AdapterError`, which names the machine,
        when one has not. :meth:`settle` settles it."""
        if not self._ranks:
            return own
        self._numbers += 1
        fetch = self._under_way[self._numbers] = _Fetch(path, own)
        return fetch.result

    def replied(self, reply: AdapterFetchedMessage) -> None:
        """What a rank has said."""
        fetch = self._under_way.get(reply.number)
        if fetch is None:  # it has failed already
            return
        fetch.missing.discard(reply.rank)
        if reply.error:
            del self._under_way[reply.number]
            fetch.result.set_exception(AdapterError(f"{self._name_of(reply.rank)}: {reply.error}"))

    def settle(self) -> None:
        """Ask the others for what this machine has found by now, and settle what all have."""
        for number, fetch in list(self._under_way.items()):
            if fetch.sent is None:
                self._ask(number, fetch)
            elif not fetch.missing:
                del self._under_way[number]
                fetch.result.set_result(fetch.own.result())
            elif self._clock() - fetch.sent > self._seconds:
                del self._under_way[number]
                name = self._name_of(min(fetch.missing))
                fetch.result.set_exception(
                    AdapterError(
                        f"{name} has not downloaded the adapter {self._seconds:g} s after rank 0 did; see whether it "
                        "can reach where the adapter comes from, and load it again"
                    )
                )

    def _ask(self, number: int, fetch: _Fetch) -> None:
        if not fetch.own.done():
            return
        error = fetch.own.exception()
        origin = "" if error is not None else origin_of(fetch.path, fetch.own.result().folder)
        if origin:
            fetch.missing.update(self._ranks)
            fetch.sent = self._clock()
            self._send(encode_adapter(FetchAdapterMessage(number, origin)))
            return
        del self._under_way[number]
        if error is not None:
            fetch.result.set_exception(error)
        else:
            fetch.result.set_result(fetch.own.result())


def origin_of(path: str, folder: Path) -> str:
    """The id that another machine downloads, where ``path`` is one and ``folder`` what was downloaded; empty: ``path``
    is the folder."""
    return "" if folder == Path(normalized(path)) else path
