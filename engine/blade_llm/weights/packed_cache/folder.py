"""The folder of packed weights: finding a file, agreeing who writes it, and keeping the folder within its bounds."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from blade_llm.weights.packed_cache import identity
from blade_llm.weights.packed_cache.file import Directory, PackedFile, PackedWriter, try_lock

logger = logging.getLogger(__name__)

LEAST_BYTES: Final = 64 << 20
"""Smaller models are packed faster than a file of them is found."""
WAIT_S: Final = 30.0
"""How long one process waits for what another one is writing, before it packs for itself alone."""
_POLL_S: Final = 0.05
_STALE_S: Final = 3600.0
_MOST_NOTES: Final = 1000
_SUFFIX: Final = ".packed"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the packed weights of one model belong. ``settings``: all that decides their content besides ``files``."""

    folder: Path
    limit: int
    """Most bytes of all files in ``folder``."""
    files: tuple[Path, ...]
    settings: tuple[str, ...]

    @property
    def _packing(self) -> str:
        return identity.packing(self.files, *self.settings)

    @property
    def _notes(self) -> Path:
        return self.folder / "checksums"

    def find(self) -> PackedFile | None:
        """The packed weights, if they are there and whole. Raises ``OSError``."""
        if not self.folder.is_dir():
            return None
        packing = self._packing
        if not any(os.access(each, os.R_OK) for each in self.folder.glob(f"{packing}-*{_SUFFIX}")):
            return None  # then nothing needs to be read for its checksum
        path = self._path(packing, identity.read_content(self.files, self._notes))
        try:
            found = PackedFile(path)
            with contextlib.suppress(OSError):
                os.utime(path)  # the least recently used are deleted first
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.DecodeError) as error:
            try:
                path.unlink()
                then = "they are written anew"
            except OSError as refusal:
                then = f"they cannot be deleted: {refusal.strerror}"
            logger.warning("packed weights in %s are not used: %s; %s", path, error, then)
            return None
        return found

    def open_writer(self, capacity: int) -> Writing | None:
        """A writer of at most ``capacity`` bytes, or None where there is no room or another process still writes after
        :data:`WAIT_S`; call :meth:`find` again then, and also before writing. Raises ``OSError``."""
        if self.limit < capacity or not self._make_room(2 * capacity):
            logger.info("packed weights are not kept: %d bytes are too much for %s", capacity, self.folder)
            return None
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # the mode is that of the last folder alone
        self._notes.mkdir(mode=0o700, exist_ok=True)
        stamp = identity.stamp(self.files)
        partial = self.folder / f"{identity.digest(self._packing, stamp)}.partial"
        deadline = time.monotonic() + WAIT_S
        while True:
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if try_lock(descriptor) and _is_at(descriptor, partial):
                    os.ftruncate(descriptor, 0)
                    return Writing(self, PackedWriter(descriptor, capacity), partial, stamp)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)

    def publish(self, partial: Path, stamp: str) -> Path:
        """Give the file that was written its name. Raises ``OSError``."""
        content = identity.read_content(self.files, self._notes)
        if identity.stamp(self.files) != stamp:
            raise OSError("the model's files changed while they were packed")
        path = self._path(self._packing, content)
        partial.replace(path)
        self._prune(path)
        return path

    def _make_room(self, wanted: int) -> bool:
        """Whether ``wanted`` bytes are free on the disk, at the cost of what has not been used for longest."""
        files = sorted(self.folder.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime)
        if wanted > self._free + sum(file.stat().st_size for file in files if _is_unused(file)):
            return False
        for file in files:
            if wanted <= self._free:
                break
            _remove_unused(file)
        return wanted <= self._free

    @property
    def _free(self) -> int:
        return shutil.disk_usage(_existing(self.folder)).free

    def _path(self, packing: str, content: str) -> Path:
        return self.folder / f"{packing}-{content}{_SUFFIX}"

    def _prune(self, kept: Path) -> None:
        """Delete what has not been used for longest until the folder is within its limit, and what was left behind.

        A file that a process has mapped stays: on a volume of several machines its pages would be gone."""
        files = sorted(self.folder.glob(f"*{_SUFFIX}"), key=lambda file: -file.stat().st_mtime)
        total = kept.stat().st_size
        for file in files:
            if file != kept and (total := total + file.stat().st_size) > self.limit:
                _remove_unused(file)
        for file in self.folder.glob("*.partial"):
            if time.time() - file.stat().st_mtime > _STALE_S:
                _remove_unused(file)
        for note in sorted(self._notes.iterdir(), key=lambda note: -note.stat().st_mtime)[_MOST_NOTES:]:
            note.unlink(missing_ok=True)


@dataclass(slots=True)
class Writing:
    """One file on its way."""

    place: Place
    writer: PackedWriter
    partial: Path
    stamp: str

    def publish(self, directory: Directory) -> None:
        """Complete the file and name it; a failure is logged, and leaves nothing behind."""
        try:
            self.writer.finish(directory)
            path = self.place.publish(self.partial, self.stamp)
            logger.info("packed weights are kept in %s", path)
            self.writer.close()
        except (OSError, ValueError) as error:
            self.give_up(error)

    def give_up(self, reason: object) -> None:
        """Remove what was written, and say why."""
        logger.warning("packed weights are not kept: %s", reason)
        self.discard()

    def discard(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError):
            self.partial.unlink()
        self.writer.close()


def packed_cache(folder: str | None, limit: int) -> tuple[Path, int] | None:
    """The folder and the most bytes of it; None where packed weights are not to be kept.

    Without ``folder`` it is beside the hub's cache where ``HF_HOME`` names one, which is then a volume for models; else
    in the user's cache, unless that is in a temporary folder, as in containers: such are small, and go with them.
    """
    if limit <= 0:
        return None
    if folder is not None:
        return Path(os.path.expanduser(folder)), limit
    if home := os.environ.get("HF_HOME"):
        return Path(os.path.expanduser(home)) / "bladellm" / "packed", limit
    try:
        found = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bladellm" / "packed"
    except RuntimeError:  # a user without a home folder
        return None
    return None if found.is_relative_to(tempfile.gettempdir()) else (found, limit)


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.exists())


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether ``path`` still names the open file: who held the lock before may have renamed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _is_unused(file: Path) -> bool:
    """Whether no process is writing ``file`` or has it mapped."""
    with contextlib.suppress(OSError), file.open("rb") as stream:
        return try_lock(stream.fileno())
    return False


def _remove_unused(file: Path) -> None:
    """Delete ``file`` unless a process is writing it or has it mapped."""
    with contextlib.suppress(OSError), file.open("rb") as stream:
        if try_lock(stream.fileno()):
            file.unlink()
