"""Finding, downloading, checking and reading adapters' files, on threads: no step waits for a disk or a hub.

What comes from elsewhere has threads of its own, so that a slow hub holds up nobody whose adapter is on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from blade_llm.engine.adapters.entry import Adapter, CheckedFiles, LoadedAdapter
from blade_llm.engine.adapters.paths import find_folder, normalized
from blade_llm.sampling.guided.threads import DaemonThreads

_T = TypeVar("_T")
RECENT: Final = 0.2
"""Share of the last one in what reading takes."""
DOWNLOADS: Final = 2
"""Adapters that are downloaded at once."""
POLL_S: Final = 0.01
"""How often other ranks are asked while nothing else is done."""


class AdapterReader(Protocol):
    """Reads folders that PEFT wrote. Both raise ``ModelFilesError``."""

    def check(self, folder: Path) -> int:
        """The rank of the adapter in ``folder``, whose configuration and tensors' shapes are right."""
        ...

    def read(self, folder: Path) -> LoadedAdapter:
        """Its weights."""
        ...


class OtherRanks(Protocol):
    """Ranks that read their own parts of all adapters; see :class:`blade_llm.engine.ranks.adapters.AdapterRanks`."""

    def fetch(self, path: str, own: Future[CheckedFiles]) -> Future[CheckedFiles]:
        """Let their machines download what ``own`` downloads of ``path``; the result is that of ``own`` once they
        have it. Without other machines it is ``own``."""
        ...

    def read(self, number: int, path: str, folder: Path, own: Future[LoadedAdapter]) -> Future[LoadedAdapter]:
        """Let them read ``folder``, which was found for ``path``; the result is that of ``own`` once they have the
        same."""
        ...

    def forget(self, number: int) -> None:
        """Let them free an adapter's memory."""

    def poll(self) -> None:
        """Settle what the others return. Raises what a lost rank raises."""


class AdapterFiles:
    """The threads that deal with files. The engine's thread calls everything.

    Args:
        ranks: others that read what is read here.
    """

    def __init__(self, reader: AdapterReader, ranks: OtherRanks | None = None) -> None:
        self._reader = reader
        self._ranks = ranks
        self._numbers = 0
        self._downloads = DaemonThreads(DOWNLOADS, "adapter-downloads")
        self._reads = DaemonThreads(1, "adapters")
        self._checks = DaemonThreads(1, "adapter-checks")
        self.read_seconds = 0.0
        """What reading one takes, as of the last ones; 0: none was read yet."""

    def prepare(self, adapter: Adapter) -> Future[CheckedFiles]:
        """Find the files of ``adapter``, download them if they are elsewhere, and check them if it is registered
        only."""
        threads = self._checks if is_local(adapter.path) else self._downloads
        own = threads.submit(self._prepare, adapter.path, adapter.register_only)
        return own if self._ranks is None or is_local(adapter.path) else self._ranks.fetch(adapter.path, own)

    def read(self, adapter: Adapter) -> Future[LoadedAdapter]:
        """Read the weights of ``adapter``, under a number that no other has."""
        self._numbers += 1
        adapter.coming = self._numbers
        own = self._reads.submit(self._read, adapter.folder, adapter.path)
        if self._ranks is None:
            return own
        folder = adapter.folder or Path(normalized(adapter.path))
        return self._ranks.read(adapter.coming, adapter.path, folder, own)

    def read_now(self, adapter: Adapter) -> LoadedAdapter:
        """Find them, read them and wait for that. Raises ``ModelFilesError``, and what lost ranks raise."""
        adapter.folder = self._wait_for(self.prepare(adapter)).folder
        return self._wait_for(self.read(adapter))

    def poll(self) -> None:
        """Settle what all machines have found and all ranks have read. Raises what lost ranks raise."""
        if self._ranks is not None:
            self._ranks.poll()

    def forget(self, number: int) -> None:
        """What was read under ``number`` is not kept."""
        if self._ranks is not None:
            self._ranks.forget(number)

    def _wait_for(self, future: Future[_T]) -> _T:
        while not wait([future], POLL_S).done:
            self.poll()
        return future.result()

    def _prepare(self, path: str, check: bool) -> CheckedFiles:
        folder = find_folder(path)
        return CheckedFiles(folder, self._reader.check(folder) if check else 0)

    def _read(self, folder: Path | None, path: str) -> LoadedAdapter:
        return self._timed(folder or find_folder(path))

    def _timed(self, folder: Path) -> LoadedAdapter:
        began = time.perf_counter()
        weights = self._reader.read(folder)
        took = time.perf_counter() - began
        self.read_seconds += (took - self.read_seconds) * (RECENT if self.read_seconds else 1.0)
        return weights


def is_local(path: str) -> bool:
    """Whether ``path`` can only be a folder of this machine."""
    return normalized(path).startswith(("/", "."))


def unfinished(adapters: Iterable[Adapter]) -> list[Future[Any]]:
    """What is under way for ``adapters``."""
    return [future for adapter in adapters for future in (adapter.files, adapter.weights) if future is not None]
