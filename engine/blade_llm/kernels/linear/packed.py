"""The protocol of packed linear layers, whichever implementation packed them."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

Quantization = Literal["none", "int8", "int4", "w8a8"]


class PackedLinear(Protocol):
    """``x @ weight.T + bias`` with a packed weight."""

    nbytes: int
    """Of the packed weight with scales, padding and bias."""

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] to [tokens, out], same type."""


class Packer(Protocol):
    """How weights are packed; :func:`blade_llm.kernels.linear.pack`, or one that keeps what it packed."""

    def __call__(
        self, weight: Tensor, bias: Tensor | None, quant: Quantization, *, deterministic: bool
    ) -> PackedLinear | None:
        """As :func:`blade_llm.kernels.linear.pack`."""
