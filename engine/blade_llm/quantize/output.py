"""Where a quantised checkpoint goes: it is written into a staging folder, whose content becomes that of the output
folder when it is whole."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blade_llm.models.errors import ModelFilesError
from blade_llm.quantize.config import CONFIG_NAME
from blade_llm.quantize.journal import JOURNAL_NAME
from blade_llm.quantize.report import REPORT_NAME

_STAGING: Final = ".blade_quantize.staging"
_LOCK: Final = ".blade_quantize.lock"
_NOT_CONTENT: Final = frozenset({_STAGING, _LOCK, "lost+found"})
"""What an output folder may have and counts as empty; the last is in every new ext4 volume."""
_LAST: Final = (REPORT_NAME, CONFIG_NAME)
"""Moved last and in this order: the report tells that staging is whole, and nothing loads without ``config.json``."""


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

    @classmethod
    def at(cls, path: Path) -> OutputFolder:
        """The one at ``path``, which may be a symbolic link to it."""
        real = Path(os.path.realpath(path))
        return cls(real, real.is_dir())

    @property
    def staging(self) -> Path:
        return self.path / _STAGING if self.inside else self.path.with_name(f".{self.path.name}.staging")

    @property
    def lock(self) -> Path:
        """A file to hold a lock of; inside of the folder it goes when the checkpoint is whole."""
        return self.path / _LOCK if self.inside else self.path.with_name(f".{self.path.name}.lock")

    @property
    def parent(self) -> Path:
        """The folder of the staging folder, on the disk that is written."""
        return self.path if self.inside else self.path.parent

    @property
    def places(self) -> tuple[Path, ...]:
        """Where files of a whole checkpoint are while it is put in place."""
        return (self.staging, self.path) if self.inside else (self.staging,)

    def require_usable(self, *, whole: bool) -> None:
        """Raise :class:`ModelFilesError` for a staging folder that no earlier run made, and unless the folder is new or
        empty. ``whole``: what is in staging may be whole, so that some of it may be in the folder already."""
        staging = self.staging
        if os.path.lexists(staging) and (staging.is_symlink() or not staging.is_dir() or not self._is_ours()):
            raise ModelFilesError(
                f"{staging} is where the work would go and was not made by blade_llm_quantize; move it away, or give "
                "another --output_dir"
            )
        if not os.path.lexists(self.path):
            return
        there = {file.name for file in self.path.iterdir()} - _NOT_CONTENT if self.path.is_dir() else {self.path.name}
        moved = self.inside and whole and staging.is_dir() and not there & {file.name for file in staging.iterdir()}
        if there and not moved:
            raise ModelFilesError(f"{self.path} is not empty; delete it or give another --output_dir")

    def discard(self) -> None:
        """Delete the staging folder. Raises ``OSError`` where any of it stays."""
        if self.staging.exists():
            shutil.rmtree(self.staging)

    def publish(self) -> None:
        """Make what is in staging, which is whole and on the disk, the folder's content. Where that was stopped, it
        goes on."""
        if not self.inside:
            self.staging.replace(self.path)
            sync(self.path.parent)
            return
        names = {file.name for file in self.staging.iterdir()}
        for name in (*sorted(names.difference(_LAST)), *(name for name in _LAST if name in names)):
            if name == CONFIG_NAME:
                sync(self.path)  # after a power cut, too, there is no config.json without weights
            (self.staging / name).replace(self.path / name)
        self.staging.rmdir()
        self.lock.unlink(missing_ok=True)
        sync(self.path)

    def _is_ours(self) -> bool:
        names = {file.name for file in self.staging.iterdir()}
        at_the_end: set[str] = {CONFIG_NAME} if self.inside else set()
        begun = names <= at_the_end or any(name.startswith(JOURNAL_NAME) for name in names)
        return begun or REPORT_NAME in names


def sync(path: Path) -> None:
    """Return when the file, or what the folder lists, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
