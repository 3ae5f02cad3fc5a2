"""A step's inputs, gathered from the row tables by index vectors; the vectors reach the device in one copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.paged_attention import RaggedBatch, prepare
from blade_llm.layers.step import KVCache, StepMetadata
from blade_llm.runner.tables import RowTables
from blade_llm.sampling.sampler import SampledRows
from blade_llm.scheduling.plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model and the sampler get."""

    token_ids: Tensor
    """[tokens] int32."""
    metadata: StepMetadata
    selected: Tensor | None
    """[sampled] int64: the tokens whose logits are wanted; None for every one."""
    sampled: SampledRows


def gather_inputs(plan: StepPlan, tables: RowTables, kv_cache: KVCache, num_heads: int) -> StepInputs:
    """Inputs for ``plan``, whose changes ``tables`` has already applied."""
    rows = np.array([share.row for share in plan.rows])
    starts = np.array([share.start for share in plan.rows])
    counts = np.array([share.count for share in plan.rows])
    ends = counts.cumsum()
    num_tokens = int(ends[-1])
    token_rows = rows.repeat(counts)
    positions = np.arange(num_tokens) + (starts - (ends - counts)).repeat(counts)
    draws = np.array([share.sample for share in plan.rows])
    selected, sampled_rows, sampled_positions = (ends - 1)[draws], rows[draws], (starts + counts)[draws]

    starts_and_end = np.concatenate(([0], ends))
    parts = _to_device(
        [token_rows, positions, rows, selected, sampled_rows, sampled_positions, starts_and_end, starts + counts],
        tables.token_ids.device,
    )
    block_size = kv_cache[0][0].shape[1]
    blocks = tables.block_table[parts[0], parts[1] // block_size].long()
    batch = RaggedBatch(
        rows=parts[2],
        query_starts=parts[6],
        seq_lens=parts[7],
        host_query_lens=counts.tolist(),
        host_seq_lens=(starts + counts).tolist(),
    )
    metadata = StepMetadata(
        positions=parts[1],
        slots=blocks * block_size + parts[1] % block_size,
        attention=prepare(batch, tables.block_table, kv_cache[0][0], num_heads),
        kv_cache=kv_cache,
    )
    return StepInputs(
        token_ids=tables.token_ids[parts[0], parts[1]],
        metadata=metadata,
        selected=None if len(selected) == num_tokens else parts[3],
        sampled=SampledRows(sampled_rows.tolist(), sampled_positions.tolist(), parts[4], parts[5]),
    )


def _to_device(vectors: list[np.ndarray], device: torch.device) -> tuple[Tensor, ...]:
    """Several int64 vectors in one transfer."""
    packed = torch.from_numpy(np.concatenate(vectors))
    if device.type == "cuda":
        packed = packed.pin_memory().to(device, non_blocking=True)
    return torch.split(packed, [len(vector) for vector in vectors])
