"""The implementation that defines what is right, and the fastest one for many tokens of one adapter on CPU."""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.lora.factors import AdapterBatch, FactorTable


def add_lora(x: Tensor, y: Tensor, table: FactorTable, batch: AdapterBatch) -> None:
    """As :func:`blade_llm.kernels.lora.add_lora`."""
    tokens = len(y)
    for slot, begin, end in zip(batch.slots, batch.starts, batch.starts[1:], strict=False):
        factors = table.factors[slot]
        if factors is None:
            continue
        whole = end - begin == tokens  # sorted: all rows in their order
        rows = None if whole else batch.rows[begin:end]
        some = x if rows is None else x.index_select(0, rows)
        shrunk = some.to(factors.a.dtype) @ factors.a.t()
        for each in factors.slices:
            rank, count = each.b.shape
            added = (shrunk[:, each.first_rank : each.first_rank + rank] @ each.b).to(y.dtype)
            outputs = y[:, each.first_output : each.first_output + count]
            if rows is None:
                outputs += added
            else:
                outputs.index_add_(0, rows, added)
