"""Where a new checkpoint goes: it is written into a staging folder, whose content becomes that of the output folder
when it is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

CONFIG_NAME: Final = "config.json"
"""Nothing loads a folder without it: it comes last."""
_OF_VOLUMES: Final = "lost+found"
"""In every new ext4 volume."""


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """The folder of the new checkpoint, and the staging folder.

    A new folder is staged beside and appears by one rename. One that exists may be a mount point, which cannot be
    renamed: it is staged inside, and files are moved up one by one.
    """

    path: Path
    """Without symbolic links."""
    inside: bool
    """Whether it exists, so that the staging folder is in it."""

    tool: ClassVar[str] = "checkpoint"
    """In the names of what is hidden inside."""

    @classmethod
    def at(cls, path: Path) -> Self:
        """The one at ``path``, which may be a symbolic link to it."""
        real = Path(os.path.realpath(path))
        return cls(real, real.is_dir())

    @property
    def staging(self) -> Path:
        name = f".blade_{self.tool}.staging"
        return self.path / name if self.inside else self.path.with_name(f".{self.path.name}.staging")

    @property
    def lock(self) -> Path:
        """A file to hold a lock of; inside of the folder it goes when the checkpoint is whole."""
        name = f".blade_{self.tool}.lock"
        return self.path / name if self.inside else self.path.with_name(f".{self.path.name}.lock")

    @property
    def parent(self) -> Path:
        """The folder of the staging folder, on the disk that is written."""
        return self.path if self.inside else self.path.parent

    @property
    def places(self) -> tuple[Path, ...]:
        """Where files of a whole checkpoint are while it is put in place."""
        return (self.staging, self.path) if self.inside else (self.staging,)

    @property
    def content(self) -> set[str]:
        """Names of what keeps the folder from counting as empty; its own where it is a file."""
        if not self.path.is_dir():
            return {self.path.name} if os.path.lexists(self.path) else set()
        hidden = (f".blade_{self.tool}.staging", f".blade_{self.tool}.lock", _OF_VOLUMES)
        return {file.name for file in self.path.iterdir()}.difference(hidden)

    def discard(self) -> None:
        """Delete the staging folder. Raises ``OSError`` where any of it stays."""
        if self.staging.exists():
            shutil.rmtree(self.staging)

    def publish(self, last: Sequence[str] = (CONFIG_NAME,), mark: str | None = None) -> None:
        """Make what is in staging, which is whole and on the disk, the folder's content. Where that was stopped, it
        goes on. ``last``: what is moved last, in this order; ``mark``: a file that ends with the staging folder."""
        if not self.inside:
            self.staging.replace(self.path)
            sync(self.path.parent)
            return
        names = {file.name for file in self.staging.iterdir()} - {mark}
        for name in (*sorted(names.difference(last)), *(name for name in last if name in names)):
            if name == CONFIG_NAME:
                sync(self.path)  # after a power cut, too, there is no config.json without weights
            (self.staging / name).replace(self.path / name)
        if mark is not None:
            (self.staging / mark).unlink(missing_ok=True)
        self.staging.rmdir()
        self.lock.unlink(missing_ok=True)
        sync(self.path)


def write_whole(path: Path, content: bytes, staging: Path | None = None) -> None:
    """Write the file whole or not at all, after everything that was written before it. ``staging``: what it is until
    then; by itself ``NAME.staging`` beside it. Raises ``OSError``."""
    staging = staging or path.with_name(f"{path.name}.staging")
    staging.write_bytes(content)
    sync(staging)
    staging.replace(path)


def sync(path: Path) -> None:
    """Return when the file, or what the folder lists, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
