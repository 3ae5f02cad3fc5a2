"""Rotary positions (Su et al., arXiv 2104.09864), how their frequencies are stretched, and which axis of an image each
pair of dimensions turns with (M-RoPE: Wang et al., arXiv 2409.12191)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All frequencies are divided (Chen et al., arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths are stretched, short ones stay (Llama team, arXiv 2407.21783)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Interpolation for dimensions that turn seldom, none for those that turn often (Peng et al., arXiv 2309.00071)."""

    factor: float
    original_positions: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    """Of cosines and sines."""
    truncate: bool = True
    """The bounds of the ramp are whole dimensions."""


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """A divisor for each frequency (Ding et al., arXiv 2402.13753), one list for short sequences and one for long."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_positions: int
    """An engine that is to serve longer sequences takes ``long`` for all of them, else ``short``."""
    attention_factor: float
    """Of cosines and sines."""


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Which dimensions of a head rotate, and how fast."""

    theta: float
    rotary_dim: int
    """The first so many dimensions rotate, the others do not. Even."""
    scaling: RopeScaling | None = None
    pairing: Literal["halves", "neighbours"] = "halves"
    """Dimension ``i`` rotates with ``i + rotary_dim / 2``, or each even one with the next."""
    sections: tuple[int, int, int] | None = None
    """How many pairs turn with the temporal position, how many with the row, and how many with the column, together
    ``rotary_dim / 2``. Tokens of text have the same position on all three axes. None: positions have one axis."""
    interleaved: bool = False
    """Pairs take turns: temporal, row, column, as long as each axis has any left; else one axis follows another."""

    def __post_init__(self) -> None:
        if self.sections is not None and sum(self.sections) != self.rotary_dim // 2:
            raise ValueError(f"sections {list(self.sections)} do not add up to {self.rotary_dim // 2} pairs")

    def axes(self) -> tuple[int, ...] | None:
        """Of each pair the axis whose position it turns with: 0 temporal, 1 row, 2 column; None for one axis."""
        if self.sections is None:
            return None
        if self.interleaved:  # what rows and columns leave over is temporal
            return tuple(i % 3 if i < 3 * self.sections[i % 3] else 0 for i in range(self.rotary_dim // 2))
        return tuple(axis for axis, count in enumerate(self.sections) for _ in range(count))

    def order(self, head_dim: int) -> tuple[int, ...] | None:
        """The dimensions of a checkpoint's head in the order in which kernels have them; None for the same order.

        Kernels rotate ``i`` with ``i + head_dim / 2``. Attention does not depend on the order of the dimensions as long
        as queries and keys have the same, so that partial rotation and neighbours are a matter of the order of weights,
        and of angles that are zero.
        """
        rotary, half, width = self.rotary_dim, self.rotary_dim // 2, head_dim // 2
        if self.pairing == "halves" and rotary == head_dim:
            return None
        neighbours = self.pairing == "neighbours"
        first = [2 * i if neighbours else i for i in range(half)]
        second = [2 * i + 1 if neighbours else half + i for i in range(half)]
        rest = range(rotary, head_dim)
        return (*first, *rest[: width - half], *second, *rest[width - half :])
