"""One kernel on one shape: right or not, how fast, and how near to what the machine can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.figures import Figure
from benchmarks.gpu.machine import bandwidth, peak, replayed, seconds

_INFINITE = 1e9
"""JSON knows no infinity."""


@dataclass(frozen=True)
class Case:
    """A kernel's call, the same by torch, and what it must move or compute at least."""

    name: str
    run: Callable[[], Tensor]
    reference: Callable[[], Tensor]
    tolerance: float
    """Largest difference, relative to the largest expected value; 0: equal."""
    bytes: int = 0
    flops: int = 0
    torch_run: Callable[[], Tensor] | None = None
    """What the time is compared with, if not ``reference``."""

    def figures(self) -> Iterator[Figure]:
        """The error alone where it is too large: the speed of a wrong result counts for nothing."""
        error = _difference(self.run(), self.reference())
        yield Figure(f"{self.name}_error", error, "relative", "<=", self.tolerance)
        if error > self.tolerance:
            return
        took = seconds(replayed(self.run))
        yield Figure(f"{self.name}_time", took * 1e6, "us")
        yield Figure(f"{self.name}_over_torch", seconds(self.torch_run or self.reference) / took, "ratio")
        if self.bytes:
            yield Figure(f"{self.name}_bandwidth", self.bytes / took / 1e9, "GB/s")
            yield Figure(f"{self.name}_of_copy", self.bytes / took / bandwidth(), "share")
        if self.flops:
            yield Figure(f"{self.name}_speed", self.flops / took / 1e12, "TFLOP/s")
            yield Figure(f"{self.name}_of_peak", self.flops / took / peak(), "share")


def _difference(actual: Tensor, expected: Tensor) -> float:
    assert actual.shape == expected.shape
    if torch.equal(actual.to(expected.dtype), expected):
        return 0.0
    # Infinities (a mask) must be in the same places.
    finite = expected.isfinite()
    if not torch.equal(actual.isfinite(), finite):
        return _INFINITE
    actual, expected = actual[finite].double(), expected[finite].double()
    return float((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-9))
