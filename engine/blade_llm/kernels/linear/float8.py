"""Linear layers whose weight is 8-bit floats with scales (e4m3: Micikevicius et al., "FP8 Formats for Deep Learning",
arXiv 2209.05433)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.linear.affine import multiply_in_blocks
from blade_llm.kernels.linear.quantized import SCALE_DTYPES
from blade_llm.spec.quantization.weights import BLOCK_ELEMENTS


@dataclass(frozen=True, slots=True, eq=False)
class Float8Weight:
    """A linear layer's weight as 8-bit floats times scales, block by block. Raises ValueError where the tensors do not
    fit together."""

    values: Tensor
    """[out, in] float8_e4m3fn."""
    scales: Tensor
    """[blocks of outputs, blocks of inputs] fp16, bf16 or fp32, as stored."""
    block: tuple[int, int]
    """Outputs and inputs that share a scale; the last ones may be fewer. As many as there are: one scale for all."""
    activations: Activations | None = None
    """How inputs are rounded before they are multiplied; None: they are not."""

    def __post_init__(self) -> None:
        if self.values.dim() != 2 or self.values.dtype != torch.float8_e4m3fn:
            raise ValueError(f"values must be [out, in] float8_e4m3fn, not {self.values.dtype}")
        if min(self.block) < 1:
            raise ValueError(f"a block must have at least one output and one input, not {self.block}")
        blocks = [-(-size // part) for size, part in zip(self.values.shape, self.block, strict=True)]
        if self.scales.dtype not in SCALE_DTYPES or list(self.scales.shape) != blocks:
            raise ValueError(
                f"scales must be {blocks} fp16, bf16 or fp32 for {list(self.values.shape)} values in blocks of "
                f"{list(self.block)}, not {list(self.scales.shape)} {self.scales.dtype}"
            )

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    @property
    def inputs(self) -> int:
        return self.values.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors as they are."""
        return self.values.nbytes + self.scales.nbytes

    def dequantize(self) -> Tensor:
        """[out, in] fp32: values times the stored scales in fp32."""
        return self.dequantize_rows(0, self.outputs)

    def dequantize_rows(self, first: int, last: int) -> Tensor:
        """[last - first, in] fp32: those rows as :meth:`dequantize`."""
        rows, columns = self.block
        blocks = torch.arange(first, last, device=self.values.device) // rows
        scales = self.scales.float()[blocks]
        if columns < self.inputs:
            scales = scales.repeat_interleave(columns, dim=1)[:, : self.inputs]
        return self.values[first:last].float().mul_(scales)


class Float8Linear:
    """8-bit floats; some outputs at a time become fp32, or on a GPU the type of the activations."""

    __slots__ = ("_bias", "_rows", "_weight", "nbytes")

    def __init__(self, weight: Float8Weight, bias: Tensor | None, rows: int | None = None) -> None:
        """``rows``: as in :func:`~blade_llm.kernels.linear.affine.multiply_in_blocks`."""
        self._weight, self._bias, self._rows = weight, bias, rows
        self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)

    def __call__(self, x: Tensor) -> Tensor:
        return multiply_in_blocks(
            x, self._blocks(), self._weight.outputs, self._bias, self._rows, self._weight.activations
        )

    def _blocks(self) -> Iterator[Tensor]:
        weight = self._weight
        rows = max(1, BLOCK_ELEMENTS // weight.inputs)
        for first in range(0, weight.outputs, rows):
            yield weight.dequantize_rows(first, min(first + rows, weight.outputs))
