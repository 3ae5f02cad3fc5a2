"""The adapters of a rank other than rank 0: read on a thread when rank 0 says so; its steps wait for no disk."""

from __future__ import annotations

import contextlib
import logging
import os
from concurrent.futures import Future
from pathlib import Path

from blade_llm.engine.adapters import AdapterReader, LoadedAdapter
from blade_llm.engine.ranks.adapter_messages import (
    AdapterMessage,
    AdapterReadMessage,
    ForgetAdapterMessage,
    encode_adapter,
)
from blade_llm.models.errors import ModelFilesError
from blade_llm.sampling.guided.threads import DaemonThreads

logger = logging.getLogger(__name__)


class RankAdapters:
    """One thread calls everything: the one that runs the rank's steps.

    Args:
        reader: reads the rank's part of a folder.
        loaded: where to put it, by number; the runner finds it there.
    """

    def __init__(self, rank: int, reader: AdapterReader, loaded: dict[int, LoadedAdapter]) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when :meth:`take_replies` has some."""
        self._rank = rank
        self._reader = reader
        self._loaded = loaded
        self._thread = DaemonThreads(1, "adapters")
        self._reading: dict[int, Future[LoadedAdapter]] = {}

    def handle(self, message: AdapterMessage) -> None:
        """Begin to read an adapter, or forget one. It does not wait."""
        if isinstance(message, ForgetAdapterMessage):
            self._loaded.pop(message.number, None)
            if (reading := self._reading.pop(message.number, None)) is not None:
                reading.cancel()
            return
        future = self._thread.submit(self._reader.read, Path(message.folder))
        self._reading[message.number] = future
        future.add_done_callback(lambda _: os.eventfd_write(self.descriptor, 1))

    def take_replies(self) -> list[bytes]:
        """Messages to rank 0 about what was read since the last call; from now on plans may use it."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        done = [number for number, future in self._reading.items() if future.done()]
        return [encode_adapter(self._reply(number, self._reading.pop(number))) for number in done]

    def _reply(self, number: int, read: Future[LoadedAdapter]) -> AdapterReadMessage:
        error = read.exception()
        if error is None:
            self._loaded[number] = weights = read.result()
            return AdapterReadMessage(self._rank, number, weights.digest)
        if isinstance(error, ModelFilesError):
            return AdapterReadMessage(self._rank, number, error=str(error))
        logger.error("an adapter could not be read", exc_info=error)
        return AdapterReadMessage(self._rank, number, error=repr(error))
