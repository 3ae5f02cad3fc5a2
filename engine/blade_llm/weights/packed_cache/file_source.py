"""What packed weights need of a source of weights, beyond handing them out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from blade_llm.models.weight_source import WeightSource


class FileSource(WeightSource, Protocol):
    """A source that reads files."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All that its tensors are read from."""

    @property
    def sizes(self) -> list[int]:
        """Elements of each tensor."""

    def parts(self, names: Sequence[str]) -> list[Tensor]:
        """The tensors as they are in their files where the type allows it: good until the next call."""

    def stacked_shape(self, names: Sequence[str]) -> tuple[int, ...]:
        """The shape of what ``stacked`` returns."""

    def trust_values(self) -> None:
        """Do not look for NaN: the same files have been loaded before."""

    def is_mapped(self, names: tuple[str, ...]) -> bool:
        """Whether this tensor is handed out as it is in its file, without a copy of more than a megabyte."""
