"""What adapters add to the result of a linear layer: ``y += scale * B (A x)``, each token with its own adapter.

Two products: *shrink*, ``A x``, from the inputs to a few numbers (the rank), and *expand*, ``B`` times these, added to
``y``. Tokens come grouped by adapter, and each adapter is computed with its real rank (SGMV: Chen et al., "Punica:
Multi-Tenant LoRA Serving", arXiv 2310.18547). What lies between the two is summed up in fp32.
"""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.lora import torch as _reference
from blade_llm.kernels.lora.device import DeviceTable, TokenGroups
from blade_llm.kernels.lora.factors import AdapterBatch, Factors, FactorTable, Slice

__all__ = [
    "AdapterBatch",
    "DeviceTable",
    "FactorTable",
    "Factors",
    "Slice",
    "TokenGroups",
    "add_lora",
    "group_tokens",
    "groups_on_device",
]


def groups_on_device(tensor: Tensor) -> bool:
    """Whether kernels on the device of ``tensor`` find out there which tokens have which adapter: it is
    :func:`group_tokens` then that says so, and tables have a :class:`DeviceTable`."""
    return backend_of(tensor) == "triton"


def group_tokens(buffers: Tensor, num_buffers: int, *, deterministic: bool = False) -> TokenGroups:
    """Group tokens by the buffers of their adapters, [tokens] int32; 0: none. Launched, and not waited for.

    ``num_buffers``: that there are, buffer 0 included. ``deterministic``: as of the tables that they go with.
    """
    from blade_llm.kernels.lora import triton

    return triton.group_tokens(buffers, num_buffers, deterministic)


def add_lora(x: Tensor, y: Tensor, table: FactorTable, batch: AdapterBatch | TokenGroups) -> None:
    """Add to ``y`` ([tokens, outputs], contiguous) what the adapters of ``batch`` make of ``x`` ([tokens, inputs]).

    Tokens that are not in ``batch``, and adapters without matrices for this layer, change nothing.
    """
    if isinstance(batch, TokenGroups):
        from blade_llm.kernels.lora import triton

        assert table.device is not None, f"{table.place} has no device table"
        triton.add_lora(x, y, table.device, batch)
        return
    if table.native is not None and backend_of(x) == "native":
        from blade_llm.kernels.lora import native

        if native.serves(x, y, table.native, batch):
            native.add_lora(x, y, table.native, batch)
            return
    _reference.add_lora(x, y, table, batch)
