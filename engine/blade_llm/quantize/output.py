"""Where a quantised checkpoint goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from blade_llm.models.errors import ModelFilesError
from blade_llm.quantize.config import CONFIG_NAME
from blade_llm.quantize.journal import JOURNAL_NAME
from blade_llm.quantize.report import REPORT_NAME
from blade_llm.weights import output_folder

_LAST: Final = (REPORT_NAME, CONFIG_NAME)
"""Moved last and in this order: the report tells that staging is whole, and nothing loads without ``config.json``."""


@dataclass(frozen=True, slots=True)
class OutputFolder(output_folder.OutputFolder):
    """The folder of the quantised checkpoint, and the staging folder."""

    tool: ClassVar[str] = "quantize"

    def require_usable(self, *, whole: bool) -> None:
        """Raise :class:`ModelFilesError` for a staging folder that no earlier run made, and unless the folder is new or
        empty. ``whole``: what is in staging may be whole, so that some of it may be in the folder already."""
        staging = self.staging
        if os.path.lexists(staging) and (staging.is_symlink() or not staging.is_dir() or not self._is_ours()):
            raise ModelFilesError(
                f"{staging} is where the work would go and was not made by blade_llm_quantize; move it away, or give "
                "another --output_dir"
            )
        there = self.content
        moved = self.inside and whole and staging.is_dir() and not there & {file.name for file in staging.iterdir()}
        if there and not moved:
            raise ModelFilesError(f"{self.path} is not empty; delete it or give another --output_dir")

    def publish(self, last: Sequence[str] = _LAST, mark: str | None = None) -> None:
        output_folder.OutputFolder.publish(self, last, mark)  # slots: there is no super() without arguments

    def _is_ours(self) -> bool:
        names = {file.name for file in self.staging.iterdir()}
        at_the_end: set[str] = {CONFIG_NAME} if self.inside else set()
        begun = names <= at_the_end or any(name.startswith(JOURNAL_NAME) for name in names)
        return begun or REPORT_NAME in names
