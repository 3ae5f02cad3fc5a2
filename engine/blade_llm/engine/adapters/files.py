"""Finding, downloading, checking and reading adapters' files, on threads: no step waits for a disk or a hub.

What comes from elsewhere has threads of its own, so that a slow hub holds up nobody whose adapter is on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Protocol

from blade_llm.engine.adapters.entry import Adapter, CheckedFiles, LoadedAdapter
from blade_llm.engine.adapters.paths import find_folder, normalized
from blade_llm.sampling.guided.threads import DaemonThreads

RECENT: Final = 0.2
"""Share of the last one in what reading takes."""
DOWNLOADS: Final = 2
"""Adapters that are downloaded at once."""


class AdapterReader(Protocol):
    """Reads folders that PEFT wrote. Both raise ``ModelFilesError``."""

    def check(self, folder: Path) -> int:
        """The rank of the adapter in ``folder``, whose configuration and tensors' shapes are right."""
        ...

    def read(self, folder: Path) -> LoadedAdapter:
        """Its weights."""
        ...


class AdapterFiles:
    """The threads that deal with files."""

    def __init__(self, reader: AdapterReader) -> None:
        self._reader = reader
        self._downloads = DaemonThreads(DOWNLOADS, "adapter-downloads")
        self._reads = DaemonThreads(1, "adapters")
        self._checks = DaemonThreads(1, "adapter-checks")
        self.read_seconds = 0.0
        """What reading one takes, as of the last ones; 0: none was read yet."""

    def prepare(self, adapter: Adapter) -> Future[CheckedFiles]:
        """Find the files of ``adapter``, download them if they are elsewhere, and check them if it is registered
        only."""
        threads = self._checks if is_local(adapter.path) else self._downloads
        return threads.submit(self._prepare, adapter.path, adapter.register_only)

    def read(self, adapter: Adapter) -> Future[LoadedAdapter]:
        """Read the weights of ``adapter``."""
        return self._reads.submit(self._read, adapter.folder, adapter.path)

    def read_now(self, path: str) -> LoadedAdapter:
        """Read them on this thread. Raises ``ModelFilesError``."""
        return self._timed(find_folder(path))

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
