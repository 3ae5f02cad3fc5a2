# mypy: ignore-errors
"""The device code of experts; :mod:`blade_llm.kernels.experts.triton` launches it and explains it. Capitals are
compile-time constants."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pairs"], do_not_specialize_on_alignment=["ids_ptr"])
def sort_by_expert(ids_ptr, order_ptr, starts_ptr, pairs, BLOCK: tl.constexpr, FIRST: tl.constexpr):
    """A stable counting sort without atomics: each program finds the pairs of one expert, from ``FIRST`` on, and how
    many come before. Pairs of experts that no program has are in no order."""
    place_of_expert = tl.program_id(0)
    expert = FIRST + place_of_expert
    columns = tl.arange(0, BLOCK)
    before = 0
    for at in range(0, pairs, BLOCK):
        ids = tl.load(ids_ptr + at + columns, at + columns < pairs, 1 << 30)
        before += tl.sum(((ids < expert) & (ids >= FIRST)).to(tl.int32), 0)
    place = before
    for at in range(0, pairs, BLOCK):
        ids = tl.load(ids_ptr + at + columns, at + columns < pairs, 1 << 30)
        mine = (ids == expert).to(tl.int32)
        tl.store(order_ptr + place + tl.cumsum(mine, 0) - mine, at + columns, mine != 0)
        place += tl.sum(mine, 0)
    tl.store(starts_ptr + place_of_expert, before)
    if place_of_expert == tl.num_programs(0) - 1:
        tl.store(starts_ptr + place_of_expert + 1, place)


@triton.jit
def _weight_tile(
    x, weight_ptr, scales_ptr, levels_ptr, outputs, inputs, inside, KIND: tl.constexpr, GROUPS: tl.constexpr
):
    """The tile [inputs, outputs] of a weight of which ``outputs`` are rows, in ``x``'s type; int8 before its scale."""
    if KIND == "int4":
        at = outputs.to(tl.int64)[None, :] * (GROUPS * 16) + inputs[:, None] // 2
        pairs = tl.load(weight_ptr + at, inside, 0).to(tl.int32)
        levels = tl.load(levels_ptr + ((pairs >> (inputs[:, None] % 2) * 4) & 15))
        scales = tl.load(scales_ptr + outputs.to(tl.int64)[None, :] * GROUPS + inputs[:, None] // 32, inside, 0.0)
        tile = levels * scales.to(tl.float32)
    else:
        tile = tl.load(weight_ptr + outputs.to(tl.int64)[None, :] * GROUPS + inputs[:, None], inside, 0)
        if KIND == "int8":
            tile = tile.to(tl.float32)
    return tile.to(x.dtype)


@triton.jit
def grouped_linear(
    x_ptr,
    weight_ptr,
    scales_ptr,
    levels_ptr,
    order_ptr,
    starts_ptr,
    out_ptr,
    EXPERTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUPS: tl.constexpr,
    TOP_K: tl.constexpr,
    GATED: tl.constexpr,
    KIND: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile of one expert's rows. Which expert's, follows from the number of tiles that those before it have.

    GATED: rows come from the tokens themselves; gate and up are computed side by side and leave as ``silu(gate) * up``
    in sorted order. Else rows are sorted and results go to their pair's place. GROUPS: int4's groups of a row, else the
    length of a row.
    """
    block = tl.program_id(1)
    experts = tl.arange(0, EXPERTS_BLOCK)
    exists = experts < EXPERTS
    counts = tl.load(starts_ptr + experts + 1, exists, 0) - tl.load(starts_ptr + experts, exists, 0)
    tiles = (counts + BLOCK_M - 1) // BLOCK_M
    after = tl.cumsum(tiles, 0)
    expert = tl.sum((after <= block).to(tl.int32), 0)
    if expert >= EXPERTS:
        return
    first = tl.sum(tl.where(experts == expert, after - tiles, 0), 0)
    rows = tl.load(starts_ptr + expert) + (block - first) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = rows < tl.load(starts_ptr + expert + 1)
    pairs = tl.load(order_ptr + rows, valid, 0)
    sources = pairs // TOP_K if GATED else rows
    x_row = x_ptr + sources.to(tl.int64)[:, None] * INPUTS
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    outputs = expert.to(tl.int64) * (2 * OUTPUTS if GATED else OUTPUTS) + columns
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up_acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, INPUTS, BLOCK_K):
        inputs = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_row + inputs[None, :], valid[:, None] & (inputs < INPUTS)[None, :], 0.0)
        inside = (inputs < INPUTS)[:, None] & (columns < OUTPUTS)[None, :]
        w = _weight_tile(x, weight_ptr, scales_ptr, levels_ptr, outputs, inputs, inside, KIND, GROUPS)
        acc = tl.dot(x, w, acc, input_precision="ieee")
        if GATED:
            w = _weight_tile(x, weight_ptr, scales_ptr, levels_ptr, outputs + OUTPUTS, inputs, inside, KIND, GROUPS)
            up_acc = tl.dot(x, w, up_acc, input_precision="ieee")
    if KIND == "int8":
        acc *= tl.load(scales_ptr + outputs, columns < OUTPUTS, 0.0)[None, :]
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    out = acc.to(dtype)
    if GATED:
        if KIND == "int8":
            up_acc *= tl.load(scales_ptr + outputs + OUTPUTS, columns < OUTPUTS, 0.0)[None, :]
        # Rounded to the storage type where the torch implementation rounds.
        gate = out.to(tl.float32)
        silu = (gate / (1.0 + tl.exp(-gate))).to(dtype)
        out = (silu.to(tl.float32) * up_acc.to(dtype).to(tl.float32)).to(dtype)
        targets = rows
    else:
        targets = pairs
    out_at = out_ptr + targets.to(tl.int64)[:, None] * OUTPUTS + columns[None, :]
    tl.store(out_at, out, valid[:, None] & (columns < OUTPUTS)[None, :])


@triton.jit(do_not_specialize_on_alignment=["weights_ptr", "ids_ptr"])
def weighted_sum(
    results_ptr,
    weights_ptr,
    ids_ptr,
    out_ptr,
    HIDDEN: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    FIRST: tl.constexpr,
    EXPERTS: tl.constexpr,
    PARTIAL: tl.constexpr,
):
    """A piece of one token's sum over its experts, always in the same order. PARTIAL: over those of the ``EXPERTS``
    from ``FIRST`` on; the others have no results."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    total = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(TOP_K):
        pair = token * TOP_K + place
        here = inside
        weight = tl.load(weights_ptr + pair)
        if PARTIAL:
            expert = tl.load(ids_ptr + pair)
            is_here = (expert >= FIRST) & (expert < FIRST + EXPERTS)
            here = inside & is_here
            weight = tl.where(is_here, weight, 0.0)
        result = tl.load(results_ptr + pair * HIDDEN + columns, here, 0.0).to(tl.float32)
        total += result * weight
    tl.store(out_ptr + token * HIDDEN + columns, total.to(out_ptr.dtype.element_ty), inside)
