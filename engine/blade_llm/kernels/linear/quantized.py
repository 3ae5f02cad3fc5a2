"""The canonical form of an affine-quantised linear weight, whichever checkpoint or algorithm it came from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.kernels.linear.activations import Activations

MIN_BITS, MAX_BITS = 2, 8
SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """A linear layer's weight as integers with scales: ``(integers - zeros) * scales``, group by group of inputs.

    Raises ValueError where the tensors do not fit together.
    """

    bits: int
    """2 to 8."""
    integers: Tensor
    """[out, in] uint8, each from 0 to ``2**bits - 1``."""
    scales: Tensor
    """[out, groups] fp16, bf16 or fp32, as stored."""
    zeros: Tensor | None
    """[out, groups] uint8; None means ``2**(bits - 1)`` everywhere (symmetric)."""
    group_size: int
    """Inputs that share a scale. The last group of a row may be shorter; as many as inputs: one scale a row."""
    order: Tensor | None = None
    """[in] int64, a permutation (act-order): column ``j`` of ``integers`` multiplies input ``order[j]``, and groups are
    consecutive columns, not consecutive inputs. None: they are the same."""
    used: int | None = None
    """Inputs, where the columns are more, to fill up groups: the integers of such columns are the zero point, and
    ``order`` has any input for them. None: as many as columns."""
    activations: Activations | None = None
    """How inputs are rounded before they are multiplied (W8A8); None: they are not."""

    def __post_init__(self) -> None:
        if not MIN_BITS <= self.bits <= MAX_BITS:
            raise ValueError(f"{self.bits} bits a weight: from {MIN_BITS} to {MAX_BITS} are possible")
        if self.integers.dim() != 2 or self.integers.dtype != torch.uint8:
            raise ValueError(f"integers must be [out, in] uint8, not {_described(self.integers)}")
        if self.group_size < 1:
            raise ValueError(f"a group must have at least one input, not {self.group_size}")
        if self.scales.dtype not in SCALE_DTYPES:
            raise ValueError(f"scales must be fp16, bf16 or fp32, not {self.scales.dtype}")
        groups = [self.outputs, -(-self.columns // self.group_size)]
        if list(self.scales.shape) != groups:
            raise ValueError(
                f"scales must be {groups} for [{self.outputs}, {self.columns}] integers in groups of "
                f"{self.group_size}, not {list(self.scales.shape)}"
            )
        if self.zeros is not None and (self.zeros.dtype != torch.uint8 or list(self.zeros.shape) != groups):
            raise ValueError(f"zeros must be {groups} uint8, not {_described(self.zeros)}")
        if self.order is not None and (self.order.dtype != torch.int64 or list(self.order.shape) != [self.columns]):
            raise ValueError(f"order must be [{self.columns}] int64, not {_described(self.order)}")
        if self.used is not None and (self.order is None or self.used > self.columns):
            raise ValueError(f"{self.columns} columns of {self.used} inputs need an order")

    @property
    def outputs(self) -> int:
        return self.integers.shape[0]

    @property
    def inputs(self) -> int:
        return self.columns if self.used is None else self.used

    @property
    def columns(self) -> int:
        """Integers of a row."""
        return self.integers.shape[1]

    @property
    def groups(self) -> int:
        """Scales of a row."""
        return self.scales.shape[1]

    @property
    def middle(self) -> int:
        """The zero point where ``zeros`` is None."""
        return 1 << (self.bits - 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors as they are, a byte an integer: more than packed."""
        tensors = (self.integers, self.scales, self.zeros, self.order)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def dequantize(self) -> Tensor:
        """[out, in] fp32 in the inputs' own order: ``(integers - zeros) * scales`` of the stored scales in fp32."""
        columns = self.dequantize_columns(0, self.outputs)
        if self.order is None:
            return columns
        if self.used is not None:  # the columns that fill up groups are zero
            return columns.new_zeros(self.outputs, self.used).index_add_(1, self.order, columns)
        weight = torch.empty_like(columns)
        weight[:, self.order] = columns
        return weight

    def dequantize_columns(self, first: int, last: int) -> Tensor:
        """[last - first, in] fp32: those rows as :meth:`dequantize`, with columns as in ``integers``."""
        weight = self.integers[first:last].float()
        scales = self.scales[first:last].float()
        zeros = None if self.zeros is None else self.zeros[first:last].float()
        if self.group_size >= self.columns:
            return weight.sub_(self.middle if zeros is None else zeros).mul_(scales)
        whole = self.columns // self.group_size * self.group_size
        count = whole // self.group_size
        groups = weight[:, :whole].view(len(weight), count, self.group_size)
        groups.sub_(self.middle if zeros is None else zeros[:, :count, None]).mul_(scales[:, :count, None])
        if whole < self.columns:
            weight[:, whole:].sub_(self.middle if zeros is None else zeros[:, count:]).mul_(scales[:, count:])
        return weight


def _described(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype}"
