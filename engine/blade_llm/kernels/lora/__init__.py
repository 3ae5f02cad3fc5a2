"""What adapters add to the result of a linear layer: ``y += scale * B (A x)``, each token with its own adapter.

Two products: *shrink*, ``A x``, from the inputs to a few numbers (the rank), and *expand*, ``B`` times these, added to
``y``. Tokens come grouped by adapter, and each adapter is computed with its real rank (SGMV: Chen et al., "Punica:
Multi-Tenant LoRA Serving", arXiv 2310.18547). What lies between the two is fp32.
"""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.lora import torch as _reference
from blade_llm.kernels.lora.factors import AdapterBatch, Factors, FactorTable, Slice

__all__ = ["AdapterBatch", "FactorTable", "Factors", "Slice", "add_lora"]


def add_lora(x: Tensor, y: Tensor, table: FactorTable, batch: AdapterBatch) -> None:
    """Add to ``y`` ([tokens, outputs], contiguous) what the adapters of ``batch`` make of ``x`` ([tokens, inputs]).

    Tokens that are not in ``batch``, and adapters without matrices for this layer, change nothing.
    """
    if table.native is not None and backend_of(x) == "native":
        from blade_llm.kernels.lora import native

        if native.serves(x, y, table.native, batch):
            native.add_lora(x, y, table.native, batch)
            return
    _reference.add_lora(x, y, table, batch)
