"""The adapters of a rank other than rank 0: downloaded and read on threads when rank 0 says so; its steps wait for no
disk and no hub."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blade_llm.engine.adapters import AdapterReader, LoadedAdapter
from blade_llm.engine.adapters.files import DOWNLOADS
from blade_llm.engine.adapters.paths import find_folder
from blade_llm.engine.ranks.adapter_messages import (
    AdapterFetchedMessage,
    AdapterMessage,
    AdapterReadMessage,
    ForgetAdapterMessage,
    ReadAdapterMessage,
    encode_adapter,
)
from blade_llm.models.errors import ModelFilesError
from blade_llm.parallel.layout import RankLayout
from blade_llm.sampling.guided.threads import DaemonThreads

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank finds the files of adapters. The default: on the machine of rank 0, which has found them."""

    elsewhere: bool = False
    """On another machine: a folder has to be there, too, and what is downloaded has a place of its own."""
    fetches: bool = False
    """This rank downloads for its machine."""

    @classmethod
    def of(cls, layout: RankLayout, rank: int) -> Place:
        """That of ``rank``: the first of each further machine downloads."""
        node = layout.node_of(rank)
        return cls(node > 0, node > 0 and rank == layout.ranks_of_node(node)[0])


HERE: Final = Place()


class RankAdapters:
    """One thread calls everything: the one that runs the rank's steps.

    Args:
        reader: reads the rank's part of a folder.
        loaded: where to put it, by number; the runner finds it there.
    """

    def __init__(self, rank: int, reader: AdapterReader, loaded: dict[int, LoadedAdapter], place: Place = HERE) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when :meth:`take_replies` has some."""
        self._rank = rank
        self._reader = reader
        self._loaded = loaded
        self._place = place
        self._reads = DaemonThreads(1, "adapters")
        self._downloads = DaemonThreads(DOWNLOADS, "adapter-downloads")
        self._reading: dict[int, Future[LoadedAdapter]] = {}
        self._fetching: dict[int, Future[Path]] = {}

    def handle(self, message: AdapterMessage) -> None:
        """Begin to download or to read an adapter, or forget one. It does not wait."""
        if isinstance(message, ForgetAdapterMessage):
            self._loaded.pop(message.number, None)
            if (reading := self._reading.pop(message.number, None)) is not None:
                reading.cancel()
        elif isinstance(message, ReadAdapterMessage):
            self._reading[message.number] = self._begin(self._reads, lambda: self._read(message))
        elif self._place.fetches:
            self._fetching[message.number] = self._begin(self._downloads, lambda: find_folder(message.origin))

    def take_replies(self) -> list[bytes]:
        """Messages to rank 0 about what was found or read since the last call; from now on plans may use the latter."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        replies = [encode_adapter(self._fetched(*each)) for each in _take_done(self._fetching)]
        return replies + [encode_adapter(self._reply(*each)) for each in _take_done(self._reading)]

    def _begin(self, threads: DaemonThreads, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = threads.submit(work)
        future.add_done_callback(lambda _: os.eventfd_write(self.descriptor, 1))
        return future

    def _read(self, message: ReadAdapterMessage) -> LoadedAdapter:
        folder = Path(message.folder)
        if self._place.elsewhere and message.origin:
            folder = find_folder(message.origin)
        elif self._place.elsewhere and not folder.is_dir():
            raise ModelFilesError(
                f"adapter folder {folder} does not exist there; it needs the same path on every machine of the engine, "
                "or give the id of a hub, bucket or registry, which each downloads"
            )
        return self._reader.read(folder)

    def _fetched(self, number: int, found: Future[Path]) -> AdapterFetchedMessage:
        error = found.exception()
        return AdapterFetchedMessage(self._rank, number, "" if error is None else _text(error))

    def _reply(self, number: int, read: Future[LoadedAdapter]) -> AdapterReadMessage:
        error = read.exception()
        if error is not None:
            return AdapterReadMessage(self._rank, number, error=_text(error))
        self._loaded[number] = weights = read.result()
        return AdapterReadMessage(self._rank, number, weights.digest)


def _take_done(under_way: dict[int, Future[Any]]) -> list[tuple[int, Future[Any]]]:
    done = [number for number, future in under_way.items() if future.done()]
    return [(number, under_way.pop(number)) for number in done]


def _text(error: BaseException) -> str:
    if isinstance(error, ModelFilesError):
        return str(error)
    logger.error("an adapter could not be read", exc_info=error)
    return repr(error)
