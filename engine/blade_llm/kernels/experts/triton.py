"""Experts in Triton: a grouped product for all of them in one launch, on tokens sorted by expert.

Each expert's rows are cut into tiles; a program finds its own in the experts' first rows, so that the host needs to
know nothing of the routing. The grid holds the most tiles that a number of tokens can need; those beyond end at once,
which is also all that a rank does for experts that are other ranks'.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
from torch import Tensor

from blade_llm.kernels.experts import triton_kernels as kernels
from blade_llm.kernels.experts.packed import Part
from blade_llm.kernels.linear.packed import Quantization
from blade_llm.kernels.linear.torch import GROUP, INT4_LEVELS, quantize_int4, quantize_int8
from blade_llm.kernels.shared_memory import shared_memory as _shared_memory

_SORT_BLOCK = 1024
_SUM_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Config:
    """The form of a grouped product."""

    rows: int
    columns: int
    """Rows of the weight that a program takes; gate and up have half each."""
    depth: int
    """Inputs of a loop iteration."""
    warps: int
    stages: int


_FORMS = {1: Config(16, 128, 128, 4, 4), 16: Config(64, 128, 64, 4, 4), 64: Config(128, 128, 64, 8, 4)}
"""By the tokens that an expert has on average, at least. Not tuned on a GPU yet. A decode waits for the weights, and
each expert has few tokens: the least rows that a tensor core takes, and long reads."""
_FIXED_FORM = 16
"""The form of a deterministic layer, whatever the number of tokens."""


@dataclass(frozen=True, slots=True)
class _Stacked:
    """One matrix of all experts."""

    weight: Tensor
    """[experts, out, in]; int4: [experts, out, groups * 16] uint8, two inputs in a byte."""
    scales: Tensor
    """int8: [experts, out] fp32; int4: [experts, out, groups] bf16; else the weight."""
    outputs: int
    inputs: int
    groups: int
    """int4's groups in a row; else the length of a row."""

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (self.scales.nbytes if self.scales is not self.weight else 0)


class TritonExperts:
    """The weights of all experts in one tensor for each of the two products."""

    __slots__ = ("_deterministic", "_down", "_experts", "_gate_up", "_kind", "_levels", "_part", "nbytes")

    def __init__(
        self,
        experts: Iterable[tuple[Tensor, Tensor]],
        quant: Quantization,
        deterministic: bool,
        part: Part | None = None,
    ) -> None:
        pairs = [(_packed(gate_up, quant), _packed(down, quant)) for gate_up, down in experts]
        self._experts = len(pairs)
        self._part = part or Part(0, len(pairs))
        self._gate_up = _stack([gate_up for gate_up, _ in pairs])
        self._down = _stack([down for _, down in pairs])
        self._kind = quant
        self._deterministic = deterministic
        device = self._down.weight.device
        self._levels = torch.tensor(INT4_LEVELS, device=device).bfloat16().float() if quant == "int4" else None
        self.nbytes = self._gate_up.nbytes + self._down.nbytes

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        tokens, top_k = ids.shape
        hidden, inner = self._gate_up.inputs, self._down.inputs
        out = torch.empty(tokens, hidden, dtype=x.dtype, device=x.device)
        if not tokens:
            return out
        pairs = tokens * top_k
        order = torch.empty(pairs, dtype=torch.int32, device=x.device)
        starts = torch.empty(self._experts + 1, dtype=torch.int32, device=x.device)
        ids, first = ids.contiguous(), self._part.first
        kernels.sort_by_expert[(self._experts,)](ids, order, starts, pairs, BLOCK=_SORT_BLOCK, FIRST=first, num_warps=4)
        gated = torch.empty(pairs, inner, dtype=x.dtype, device=x.device)
        results = torch.empty(pairs, hidden, dtype=x.dtype, device=x.device)
        self._launch(x.contiguous(), self._gate_up, order, starts, gated, top_k)
        self._launch(gated, self._down, order, starts, results, 0)
        kernels.weighted_sum[(tokens, triton.cdiv(hidden, _SUM_BLOCK))](
            results,
            weights.contiguous(),
            ids,
            out,
            HIDDEN=hidden,
            TOP_K=top_k,
            BLOCK=_SUM_BLOCK,
            FIRST=first,
            EXPERTS=self._experts,
            PARTIAL=self._experts < self._part.total,
            num_warps=4,
        )
        return out

    def warm(self, dtype: torch.dtype, top_k: int) -> None:
        """Compile every form of the kernels for activations of ``dtype``."""
        device = self._down.weight.device
        for average in (_FIXED_FORM,) if self._deterministic else _FORMS:
            tokens, total = -(-average * self._part.total // top_k), self._part.total
            ids = torch.arange(tokens * top_k, dtype=torch.int32, device=device).view(tokens, top_k) % total
            x = torch.zeros(tokens, self._gate_up.inputs, dtype=dtype, device=device)
            self(x, ids, torch.zeros(tokens, top_k, device=device))

    def _launch(
        self, x: Tensor, matrix: _Stacked, order: Tensor, starts: Tensor, out: Tensor, tokens_top_k: int
    ) -> None:
        """``tokens_top_k``: experts of a token where ``x`` has tokens and the matrix gate and up; 0 for sorted rows."""
        gated = tokens_top_k > 0
        pairs = len(order)
        average = _FIXED_FORM if self._deterministic else max(1, pairs // self._part.total)
        config = config_of(average, x.element_size(), _shared_memory(x.device), self._kind)
        outputs = matrix.outputs // 2 if gated else matrix.outputs
        columns = config.columns // 2 if gated else config.columns
        blocks = min(pairs, pairs // config.rows + self._experts)
        kernels.grouped_linear[(triton.cdiv(outputs, columns), blocks)](
            x,
            matrix.weight,
            matrix.scales,
            matrix.scales if self._levels is None else self._levels,
            order,
            starts,
            out,
            EXPERTS=self._experts,
            OUTPUTS=outputs,
            INPUTS=matrix.inputs,
            GROUPS=matrix.groups,
            TOP_K=max(1, tokens_top_k),
            GATED=gated,
            KIND=self._kind,
            EXPERTS_BLOCK=triton.next_power_of_2(self._experts),
            BLOCK_M=config.rows,
            BLOCK_N=columns,
            BLOCK_K=config.depth,
            num_warps=config.warps,
            num_stages=config.stages,
        )


@cache
def config_of(average: int, element_size: int, shared_memory: int, kind: Quantization = "none") -> Config:
    """The form for ``average`` tokens an expert, with loads in flight trimmed to ``shared_memory`` bytes."""
    config = _FORMS[max(least for least in _FORMS if least <= average)]
    if element_size > 2:
        config = replace(config, depth=config.depth // 2)
    weights, spare = config.columns * config.depth, shared_memory - 1024
    stage = config.rows * config.depth * element_size + weights * element_size
    if kind == "int4":  # the levels are loaded for each stage but the last, whose tile is made of them
        stage += weights * (4 - element_size)
        spare += stage - weights * element_size
    return replace(config, stages=max(1, min(config.stages, spare // stage)))


def _packed(weight: Tensor, quant: Quantization) -> _Stacked:
    outputs, inputs = weight.shape
    if quant == "int8":
        integers, scales = quantize_int8(weight)
        return _Stacked(integers, scales[:, 0], outputs, inputs, inputs)
    if quant == "int4":
        indices, group_scales = quantize_int4(weight)
        pairs = (indices[..., 0::2] | indices[..., 1::2] << 4).flatten(1)
        return _Stacked(pairs, group_scales[..., 0], outputs, inputs, -(-inputs // GROUP))
    return _Stacked(weight, weight, outputs, inputs, inputs)


def _stack(matrices: list[_Stacked]) -> _Stacked:
    weight = torch.stack([matrix.weight for matrix in matrices])
    plain = matrices[0].scales is matrices[0].weight
    scales = weight if plain else torch.stack([matrix.scales for matrix in matrices])
    return replace(matrices[0], weight=weight, scales=scales)
