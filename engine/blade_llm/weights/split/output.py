"""Where the parts of ranks go, and a checkpoint that is joined of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.output_folder import OutputFolder, sync

_MARK: Final = ".blade_join"
"""In a staging folder: it is one of a join; when all of it is there, what it was joined of."""


@dataclass(frozen=True, slots=True)
class SplitOutput(OutputFolder):
    """The folder of the ranks' folders, which is written in place: each rank's own says when it is whole."""

    tool: ClassVar[str] = "split"

    @property
    def lock(self) -> Path:
        """Beside the folder, which the first run makes and the next one finds; inside where nothing can be written
        there, as beside a mount point."""
        beside = self.path.with_name(f".{self.path.name}.lock")
        folder = next(each for each in beside.parents if each.is_dir())
        if os.access(folder, os.W_OK | os.X_OK) or not self.path.is_dir():
            return beside
        return self.path / f".blade_{self.tool}.lock"

    def unlock(self) -> None:
        """Delete a lock file inside of the folder, which is whole."""
        if self.lock.parent == self.path:
            self.lock.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class JoinOutput(OutputFolder):
    """The folder of a joined checkpoint, and the staging folder."""

    tool: ClassVar[str] = "join"

    def require_usable(self, source: str) -> None:
        """Raise :class:`ModelFilesError` for a staging folder that no join made, and unless the folder is new, empty
        or what an earlier run of the same was putting files into. ``source`` names what is joined."""
        staging = self.staging
        if os.path.lexists(staging) and (staging.is_symlink() or not staging.is_dir() or not self._is_ours()):
            raise ModelFilesError(
                f"{staging} is where the work would go and was not made by blade_llm_split; move it away, or give "
                "another --output_dir"
            )
        if self.content and not self.is_whole(source):
            raise ModelFilesError(f"{self.path} is not empty; delete it or give another --output_dir")

    def begin(self) -> None:
        """Make a new staging folder; an earlier one is deleted. Raises ``OSError``."""
        self.discard()
        self.parent.mkdir(parents=True, exist_ok=True)
        self.staging.mkdir()
        (self.staging / _MARK).touch()

    def is_whole(self, source: str) -> bool:
        """Whether all of a checkpoint joined of ``source`` is in staging, or some of it in place already."""
        mark = self.staging / _MARK
        if not self.inside or not mark.is_file() or mark.read_text() != source:
            return False
        return not self.content & {file.name for file in self.staging.iterdir()}

    def finish(self, source: str) -> None:
        """Put in place what is in staging, which is whole, or go on where that was stopped."""
        for file in self.staging.rglob("*"):
            if file.is_file():
                sync(file)
        (self.staging / _MARK).write_text(source)
        sync(self.staging / _MARK)
        sync(self.staging)
        self.publish(mark=_MARK)
        (self.path / _MARK).unlink(missing_ok=True)  # of a folder that was renamed

    def _is_ours(self) -> bool:
        names = {file.name for file in self.staging.iterdir()}
        return not names or _MARK in names
