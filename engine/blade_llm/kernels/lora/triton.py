"""What adapters add, in Triton: two launches a layer, shrink and expand, for all adapters of a step together.

Segmented gather matrix-vector products (SGMV: Chen et al., "Punica: Multi-Tenant LoRA Serving", arXiv 2310.18547), with
each adapter at its own rank, as S-LoRA has it (Sheng et al., arXiv 2311.03285). Once a step tokens are sorted by
adapter, and each adapter's are cut into tiles. A program of shrink takes a tile and a part of the inputs, as ranks are
too few to fill a GPU (split-K). A program of expand takes a tile and some of the outputs of one part of the layer
(queries, keys or values; gate or up), adds up the splits, always in the same order and without atomics, multiplies, and
adds to the base layer's result.

Grids depend on the number of tokens and of buffers alone, and programs without work end at once: the host waits for
nothing, so all of it can be part of a CUDA graph.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor

from blade_llm.kernels.experts.triton_kernels import sort_by_expert
from blade_llm.kernels.lora import triton_kernels as kernels
from blade_llm.kernels.lora.device import DeviceTable, TokenGroups
from blade_llm.kernels.lora.triton_forms import form_of, rows_of, splits_of, tiles_of
from blade_llm.spec.adapter_layout import ENTRY_HEAD, ENTRY_PART, UNIT, padded

_SORT_BLOCK = 1024
_TILE_BLOCK = 16


def group_tokens(buffers: Tensor, num_buffers: int, deterministic: bool) -> TokenGroups:
    """Sort tokens whose adapters are in ``buffers`` ([tokens] int32, contiguous; 0: none) by these.

    ``num_buffers``: that there are, buffer 0 included. ``deterministic``: as of the tables that they go with.
    """
    tokens, device = len(buffers), buffers.device
    order = torch.empty(tokens, dtype=torch.int32, device=device)
    starts = torch.empty(num_buffers + 1, dtype=torch.int32, device=device)
    rows = rows_of(tokens, deterministic)
    tiles = tiles_of(tokens, num_buffers - 1, rows)
    found = torch.empty(tiles, 4, dtype=torch.int32, device=device)
    if tokens:
        sort_by_expert[(num_buffers,)](buffers, order, starts, tokens, BLOCK=_SORT_BLOCK, num_warps=4)
        kernels.find_tiles[(triton.cdiv(tiles, _TILE_BLOCK),)](
            starts,
            found,
            tiles,
            BUFFERS=num_buffers,
            PADDED=triton.next_power_of_2(num_buffers),
            ROWS=rows,
            BLOCK=_TILE_BLOCK,
            num_warps=4,
        )
    return TokenGroups(order, found)


def add_lora(x: Tensor, y: Tensor, table: DeviceTable, groups: TokenGroups) -> None:
    """As :func:`blade_llm.kernels.lora.add_lora`."""
    tokens = len(y)
    if not tokens:
        return
    if x.stride(1) != 1:
        x = x.contiguous()
    weights, parts = table.weights, len(table.outputs)
    wide = x.dtype != weights.dtype or x.dtype == torch.float32
    form = form_of(tokens, 4 if wide else x.element_size(), table.deterministic, _shared_memory(x.device))
    tiles = len(groups.tiles)
    splits = splits_of(tiles, table.inputs, _processors(x.device), table.deterministic)
    ranks = parts * table.max_rank
    partial = torch.empty(splits, tokens, ranks, dtype=torch.float32, device=x.device)
    in_common = {"UNIT": UNIT, "BLOCK_M": form.rows, "WIDE": wide, "num_warps": form.warps, "num_stages": form.stages}
    kernels.shrink[(tiles, splits)](
        x,
        weights,
        table.entries,
        groups.order,
        groups.tiles,
        partial,
        tokens,
        x.stride(0),
        table.inputs,
        padded(table.inputs),
        table.entries.stride(0),
        weights.stride(0) // UNIT,
        ranks,
        BLOCK_K=form.depth,
        **in_common,
    )
    kernels.expand[(triton.cdiv(max(table.outputs), form.columns), tiles, parts)](
        partial,
        weights,
        table.entries,
        table.parts,
        groups.order,
        groups.tiles,
        y,
        table.entries.stride(0),
        weights.stride(0) // UNIT,
        ranks,
        splits,
        partial.stride(0),
        y.shape[1] // table.step,
        STEP=table.step,
        HEAD=ENTRY_HEAD,
        PART=ENTRY_PART,
        BLOCK_N=form.columns,
        **in_common,
    )


@cache
def _shared_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return 1 << 16
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return properties["max_shared_mem"]


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 16
