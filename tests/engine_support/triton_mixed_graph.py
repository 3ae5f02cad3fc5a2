"""Attention as the graph of a mixed step has it."""

from __future__ import annotations

import torch
from engine_support.attention_cases import AttentionCase
from engine_support.triton_interpreter import DEVICE

from blade_llm.kernels.paged_attention import PLAIN, AttentionVariant, RaggedBatch
from blade_llm.kernels.paged_attention import triton as kernels


def in_graph(
    case: AttentionCase,
    sequences: int,
    tokens: int,
    window: int = 0,
    variant: AttentionVariant = PLAIN,
    divided: bool = False,
    **options: bool,
) -> torch.Tensor:
    """Attention as the graph of a mixed step has it, for so many sequences and tokens: the kernels read everything,
    also how many decodes there are, when they run. ``divided``: contexts of sequences with few new tokens are."""
    real, heads, table = len(case.batch.slots), case.q.shape[1], case.table
    slots = torch.full((sequences,), len(table) - 1, device=DEVICE)
    starts = torch.zeros(sequences + 1, dtype=torch.int64, device=DEVICE)
    seq_lens, decodes = torch.zeros_like(slots), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    shorts = torch.zeros_like(decodes) if divided else None
    batch = RaggedBatch(slots, starts, seq_lens, [], [], decodes, shorts)
    q = torch.zeros(tokens, *case.q.shape[1:], dtype=case.q.dtype, device=DEVICE)
    step = kernels.prepare(batch, table, case.k_cache, heads, **options)
    slots[:real].copy_(case.batch.slots)
    starts[: real + 1].copy_(case.batch.query_starts)
    starts[real + 1 :] = starts[real]
    seq_lens[:real].copy_(case.batch.seq_lens)
    counts = [*case.batch.host_query_lens, 0]
    decodes.fill_(next(index for index, count in enumerate(counts) if count != 1))
    if shorts is not None:
        most, behind = kernels.most_split_queries(case.k_cache, heads), counts[int(decodes) :]
        shorts.fill_(next(index for index, count in enumerate(behind) if not 1 < count <= most))
    q[: len(case.q)].copy_(case.q)
    out = kernels.paged_attention(q, case.k_cache, case.v_cache, step, case.scale, window, variant)
    assert not out[len(case.q) :].any()
    return out[: len(case.q)]
