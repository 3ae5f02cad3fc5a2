"""Quantised rows of the KV cache in plain torch, which defines what the kernels compute.

A row (:mod:`blade_llm.kv_quant`) is packed numbers, then an fp16 scale of each group, then, of affine methods, an
fp16 zero of each. Scales are rounded first and used rounded, so their own rounding adds no error:

- ``int8``: ``round(x / s) + 128`` with ``s = max |x| / 127``.
- ``int4``: ``round(x / s) + 8`` with ``s = m / -8``, ``m`` being the element of the largest size with its sign: that
  one gets the level -8, which has no positive counterpart.
- affine (Jacob et al., arXiv 1712.05877): ``round((x - z) / s)`` with ``z = min x``, ``s = (max x - z) / levels``.
- fp8 (Micikevicius et al., arXiv 2209.05433): ``x / s`` as e4m3 or e5m2, with ``s = max |x| / 448``.

A scale of each token and head instead of one for all: what is written never depends on what came before or is in the
batch, no key is cut off at the largest number of e4m3, and no calibration is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blade_llm.kv_quant import FP8_MAX, SCALE_BYTES, KVQuant

_FP8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """How rows of one layer's keys are packed, and, by :attr:`values`, those of its values."""

    quant: KVQuant
    head_dim: int
    dtype: torch.dtype
    """Of queries, and of what rows become when they are read."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, the last dimension of a cache of keys."""
        return self.quant.row_bytes(self.head_dim)

    @property
    def values(self) -> QuantizedRows:
        """How rows of values are packed: all else here is about those of keys."""
        values = self.quant.values
        return self if values is self.quant else replace(self, quant=values)

    def unpacked_like(self, cache: Tensor) -> Tensor:
        """A tensor without memory of its own, in the shape and type that ``cache`` had if it were not quantised."""
        return torch.empty((), dtype=self.dtype, device=cache.device).expand(*cache.shape[:3], self.head_dim)

    def quantize(self, x: Tensor) -> Tensor:
        """[..., head_dim] floats to [..., row_bytes] uint8."""
        wide = x.float().reshape(*x.shape[:-1], self.quant.groups, -1)
        largest, least = wide.amax(-1, keepdim=True), wide.amin(-1, keepdim=True)
        zero: Tensor | None = None
        method = self.quant.method
        if self.quant.affine:
            levels = 15 if self.quant.four_bits else 255
            zero = least.half()
            scale = ((largest - zero.float()) / levels).half()
            numbers = _divide(wide - zero.float(), scale).round().clamp(0, levels).to(torch.uint8)
        elif method == "int8":
            scale = (wide.abs().amax(-1, keepdim=True) / 127).half()
            numbers = (_divide(wide, scale).round().clamp(-127, 127) + 128).to(torch.uint8)
        elif method == "int4":
            scale = (torch.where(largest > -least, largest, least) / -8).half()
            numbers = (_divide(wide, scale).round().clamp(-8, 7) + 8).to(torch.uint8)
        else:
            scale = (wide.abs().amax(-1, keepdim=True) / FP8_MAX).half()
            numbers = _divide(wide, scale).clamp(-FP8_MAX, FP8_MAX).to(_FP8[method]).view(torch.uint8)
        numbers = numbers.flatten(-2)
        if self.quant.four_bits:
            low, high = numbers.chunk(2, dim=-1)
            numbers = low | high << 4
        terms = (scale,) if zero is None else (scale, zero)
        return torch.cat((numbers, *(_bytes(each.squeeze(-1)) for each in terms)), dim=-1)

    def dequantize(self, rows: Tensor) -> Tensor:
        """[..., row_bytes] uint8 to [..., head_dim] of ``dtype``."""
        groups, width = self.quant.groups, SCALE_BYTES * self.quant.groups
        packed = self.row_bytes - width * (2 if self.quant.affine else 1)
        numbers = rows[..., :packed]
        scale = rows[..., packed : packed + width].contiguous().view(torch.float16).float().unsqueeze(-1)
        method = self.quant.method
        if self.quant.four_bits:
            numbers = torch.cat((numbers & 15, numbers >> 4), dim=-1)
            wide = numbers.float() if self.quant.affine else numbers.float() - 8
        elif method == "int8":
            wide = numbers.float() - 128
        elif method == "int8_affine":
            wide = numbers.float()
        else:
            wide = numbers.contiguous().view(_FP8[method]).float()
        wide = wide.reshape(*wide.shape[:-1], groups, -1) * scale
        if self.quant.affine:
            wide = wide + rows[..., packed + width :].contiguous().view(torch.float16).float().unsqueeze(-1)
        return wide.flatten(-2).to(self.dtype)


def _divide(x: Tensor, scale: Tensor) -> Tensor:
    """``x / scale``; a scale of zero belongs to elements that are all alike, or too small for fp16."""
    wide = scale.float()
    return x / torch.where(wide == 0, 1.0, wide)


def _bytes(terms: Tensor) -> Tensor:
    return terms.contiguous().view(torch.uint8)
