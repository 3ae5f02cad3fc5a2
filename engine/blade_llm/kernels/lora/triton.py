"""What adapters add, in Triton: two launches a layer, shrink and expand, for all adapters of a step together.

Segmented gather matrix-vector products (SGMV: Chen et al., "Punica: Multi-Tenant LoRA Serving", arXiv 2310.18547), with
each adapter at its own rank, as S-LoRA has it (Sheng et al., arXiv 2311.03285). Once a step tokens are sorted by
adapter, and each adapter's are cut into tiles. A program of shrink takes a tile and a part of the inputs, as ranks are
too few to fill a GPU (split-K): into how many parts they are cut the device finds out once a step, from the tiles that
there are. A program of expand takes a tile and some of the outputs of one part of the layer (queries, keys or values;
gate or up), then others; it adds up the splits, always in the same order and without atomics, multiplies, and adds to
the base layer's result. A tile of one token is computed element by element, without tensor cores.

Grids depend on the number of tokens and of buffers alone, and programs without work end at once: the host waits for
nothing, so all of it can be part of a CUDA graph. On NVIDIA's GPUs from Hopper on both kernels begin while the one
before them ends (programmatic dependent launch), and what expand needs of an adapter is on its way by then.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor

from blade_llm.kernels.experts.triton_kernels import sort_by_expert
from blade_llm.kernels.lora import triton_kernels as kernels
from blade_llm.kernels.lora.device import DeviceTable, TokenGroups
from blade_llm.kernels.lora.triton_forms import (
    EXPAND_PROGRAMS,
    WIDE_OUTPUTS,
    form_of,
    most_splits,
    programs_of,
    rows_of,
    tiles_of,
)
from blade_llm.spec.adapter_layout import ENTRY_HEAD, ENTRY_PART, UNIT, padded

_SORT_BLOCK = 1024
_RECORD_BLOCK = 16


def group_tokens(buffers: Tensor, num_buffers: int, deterministic: bool) -> TokenGroups:
    """Sort tokens whose adapters are in ``buffers`` ([tokens] int32, contiguous; 0: none) by these.

    ``num_buffers``: that there are, buffer 0 included. ``deterministic``: as of the tables that they go with.
    """
    tokens, device = len(buffers), buffers.device
    order = torch.empty(tokens, dtype=torch.int32, device=device)
    starts = torch.empty(num_buffers + 1, dtype=torch.int32, device=device)
    rows = rows_of(tokens, deterministic)
    tiles, most = tiles_of(tokens, num_buffers - 1, rows), most_splits(tokens, deterministic)
    programs = programs_of(tiles, most, _processors(device), deterministic)
    records = torch.empty(tiles + programs, 8, dtype=torch.int32, device=device)
    found, work = records[:tiles], records[tiles:]
    if tokens:
        sort_by_expert[(num_buffers,)](buffers, order, starts, tokens, BLOCK=_SORT_BLOCK, FIRST=0, num_warps=4)
        kernels.find_tiles[(triton.cdiv(len(records), _RECORD_BLOCK),)](
            starts,
            found,
            work,
            tiles,
            programs,
            BUFFERS=num_buffers,
            PADDED=triton.next_power_of_2(num_buffers),
            ROWS=rows,
            BLOCK=_RECORD_BLOCK,
            FIXED=deterministic,
            MOST=most,
            num_warps=4,
        )
    return TokenGroups(order, found, work, most)


def add_lora(x: Tensor, y: Tensor, table: DeviceTable, groups: TokenGroups) -> None:
    """As :func:`blade_llm.kernels.lora.add_lora`."""
    tokens, device = len(y), x.device
    if not tokens:
        return
    if x.stride(1) != 1:
        x = x.contiguous()
    weights, parts = table.weights, len(table.outputs)
    wide = x.dtype != weights.dtype or x.dtype == torch.float32
    form = form_of(tokens, 4 if wide else x.element_size(), table.deterministic, _shared_memory(device))
    ranks = parts * table.max_rank
    partial = torch.empty(groups.most_splits, tokens, ranks, dtype=torch.float32, device=device)
    in_common = {"UNIT": UNIT, "BLOCK_M": form.rows, "WIDE": wide, "FIXED": table.deterministic, "OVERLAP": False}
    if _overlaps(device):
        in_common |= {"OVERLAP": True, "launch_pdl": True}
    kernels.shrink[(len(groups.work),)](
        x,
        weights,
        table.entries,
        groups.order,
        groups.work,
        partial,
        tokens,
        x.stride(0),
        table.inputs,
        padded(table.inputs),
        table.entries.stride(0),
        weights.stride(0) // UNIT,
        ranks,
        BLOCK_K=form.depth,
        num_warps=form.shrink_warps,
        num_stages=form.stages,
        **in_common,
    )
    columns = form.columns if max(table.outputs) >= WIDE_OUTPUTS else form.columns // 2
    blocks = sum(triton.cdiv(outputs, columns) for outputs in table.outputs)
    kernels.expand[(min(len(groups.tiles) * blocks, EXPAND_PROGRAMS * _processors(device)),)](
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
        partial.stride(0),
        y.shape[1] // table.step,
        blocks,
        STEP=table.step,
        HEAD=ENTRY_HEAD,
        PART=ENTRY_PART,
        PARTS=parts,
        BLOCK_N=columns,
        BLOCK_R=form.ranks,
        num_warps=form.expand_warps,
        num_stages=form.stages,
        **in_common,
    )


@cache
def _overlaps(device: torch.device) -> bool:
    """Whether a kernel can begin while the one before it ends: programmatic dependent launch, NVIDIA from Hopper on."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9


@cache
def _shared_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return 1 << 16
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return properties["max_shared_mem"]


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 16
