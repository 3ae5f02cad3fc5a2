"""Linear layers whose weights alone are quantised: affine integers of up to 8 bits, and 8-bit floats (e4m3).

Up to 64 rows: each program unpacks its weights in registers and multiplies them on tensor cores; where outputs are too
few to fill the GPU, inputs are split among programs (split-K), and a second kernel adds the parts up in order. The
integers, less their zero points, are multiplied as they are and their sums scaled in fp32, so nothing of a weight is
rounded. More rows: some outputs at a time become floats of the activations' type in a workspace, for cuBLAS.

A deterministic layer has one form, 128 rows at a time: a row's sum has the same order whatever the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.gpu import kernels
from blade_llm.kernels.linear.gpu.forms import MOST_ROWS, Form, block_rows, form_of, split_units, stages_of
from blade_llm.kernels.linear.gpu.words import Words, words_of
from blade_llm.kernels.linear.quantized import QuantizedWeight

FIXED_ROWS = 128
"""Rows that a deterministic layer multiplies at once, in tiles of :data:`MOST_ROWS`: enough to read weights seldom, and
the parts of split sums stay small."""
_SUM_BLOCK = 1024
_FLOATS_OUTPUTS = 32


class GpuLinear:
    """A packed weight with its bias."""

    __slots__ = ("_bias", "_deterministic", "_dtype", "_inputs", "_words", "nbytes")

    def __init__(
        self, weight: QuantizedWeight | Float8Weight, bias: Tensor | None, dtype: torch.dtype, *, deterministic: bool
    ) -> None:
        """``dtype``: of the activations. :func:`~blade_llm.kernels.linear.gpu.why_not` must have nothing against it."""
        self._words, self._inputs = words_of(weight), weight.inputs
        self._bias = None if bias is None else bias.to(dtype).contiguous()
        self._dtype, self._deterministic = dtype, deterministic
        self.nbytes = self._words.nbytes + (self._bias.nbytes if self._bias is not None else 0)

    def __call__(self, x: Tensor) -> Tensor:
        words = self._words
        if x.dim() != 2 or x.shape[1] != self._inputs or x.dtype != self._dtype:
            raise ValueError(f"x must be [tokens, {self._inputs}] {self._dtype}, not {list(x.shape)} {x.dtype}")
        tokens = len(x)
        y = x.new_empty(tokens, words.outputs)
        if not tokens:
            return y
        x = x.contiguous() if words.order is None else x.index_select(1, words.order)
        if self._deterministic:
            for first in range(0, tokens, FIXED_ROWS):
                some = slice(first, first + FIXED_ROWS)
                self._multiply(x[some], y[some], form_of(MOST_ROWS, deterministic=True))
        elif tokens <= MOST_ROWS:
            self._multiply(x, y, form_of(tokens, deterministic=False))
        else:
            self._multiply_floats(x, y)
        return y

    def _multiply(self, x: Tensor, y: Tensor, form: Form) -> None:
        words, rows, bias = self._words, len(x), self._bias
        splits, each = split_units(words.units, words.outputs, form.outputs, x.device)
        parts = y if splits == 1 else torch.empty(splits, rows, words.outputs, device=x.device)
        unit = words.slice * words.slices
        stage = form.outputs * words.slice * 4 + form.rows * unit * x.element_size()
        kernels.multiply[(-(-words.outputs // form.outputs), -(-rows // form.rows), splits)](
            x,
            words.words,
            words.scales,
            words.scales if words.zeros is None else words.zeros,
            x if bias is None else bias,
            parts,
            rows,
            UNITS=words.units,
            SPLIT_UNITS=each,
            SPLITS=splits,
            RUN=words.run,
            BIASED=bias is not None,
            BLOCK_M=form.rows,
            BLOCK_N=form.outputs,
            num_warps=form.warps,
            num_stages=stages_of(form, stage, x.device),
            **_constants(words),
        )
        if splits > 1:
            kernels.sum_splits[(-(-words.outputs // _SUM_BLOCK), rows)](
                parts,
                x if bias is None else bias,
                y,
                rows,
                OUTPUTS=words.outputs,
                SPLITS=splits,
                BIASED=bias is not None,
                BLOCK=_SUM_BLOCK,
                num_warps=4,
            )

    def _multiply_floats(self, x: Tensor, y: Tensor) -> None:
        words = self._words
        at_once = block_rows(len(x), words.outputs, words.inputs)
        floats = x.new_empty(at_once, words.inputs)
        for first in range(0, words.outputs, at_once):
            last = min(first + at_once, words.outputs)
            kernels.write_floats[(-(-(last - first) // _FLOATS_OUTPUTS), words.units)](
                words.words,
                words.scales,
                words.scales if words.zeros is None else words.zeros,
                floats,
                first,
                last,
                BLOCK_N=_FLOATS_OUTPUTS,
                num_warps=4,
                **_constants(words),
            )
            weight, out = floats[: last - first].t(), y[:, first:last]
            if self._bias is None:
                torch.mm(x, weight, out=out)
            else:
                torch.addmm(self._bias[first:last], x, weight, out=out)


def _constants(words: Words) -> dict[str, int | str | bool]:
    return {
        "OUTPUTS": words.outputs,
        "INPUTS": words.inputs,
        "SLICE": words.slice,
        "KIND": words.kind,
        "WIDTH": words.width,
        "GROUPS": words.groups,
        "SCALE_ROWS": words.scales.shape[1],
        "GROUP_SLICES": words.group_slices,
        "SHARING": words.sharing,
        "MIDDLE": words.middle,
        "HAS_ZEROS": words.zeros is not None,
    }
