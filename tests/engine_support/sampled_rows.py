"""Requests at the moment of a draw, without a runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from engine_support.token_masks import masks_for

from blade_llm.sampling.masks import TokenMasks
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.sampling.sampler import Drawn, SampledRows, Sampler
from blade_llm.sampling.stages import stages_of
from blade_llm.sampling.table import SamplingTable

CPU = torch.device("cpu")


@dataclass
class Row:
    """A request at the moment of a draw."""

    params: SamplingParams
    tokens: list[int] = field(default_factory=lambda: [3, 1, 4])
    prompt: int = 3
    sample_index: int = 0
    masked: tuple[int, ...] = ()


def sampler_for(rows: dict[int, Row]) -> tuple[Sampler, SampledRows]:
    table = SamplingTable(16, CPU)
    token_ids = torch.full((16, 64), 7, dtype=torch.int32)  # garbage beyond each row's end
    for index, row in rows.items():
        table.enter(
            index,
            row.params,
            num_prompt_tokens=row.prompt,
            sample_index=row.sample_index,
            masked_until_min_tokens=row.masked,
        )
        token_ids[index, : len(row.tokens)] = torch.tensor(row.tokens)
    indices, positions = list(rows), [len(row.tokens) for row in rows.values()]
    return Sampler(table, token_ids), SampledRows(indices, positions, torch.tensor(indices), torch.tensor(positions))


def draw(rows: dict[int, Row], logits: torch.Tensor, masks: TokenMasks | None = None) -> Drawn:
    sampler, sampled = sampler_for(rows)
    return sampler.draw(logits, sampled, masks)


def probabilities(row: Row, logits: torch.Tensor, allowed: Sequence[int] | None = None) -> torch.Tensor:
    """What the draw's argmax is over, as probabilities; ``logits``: [vocabulary]; ``allowed``: its mask."""
    sampler, sampled = sampler_for({5: row})
    masks = None if allowed is None else masks_for([5], {5: allowed}, len(logits))
    stages = stages_of(sampled, sampler._table, CPU, masks)
    changed = sampler.changed(logits.unsqueeze(0), sampled, stages)
    scaled, floor = sampler.filtered(changed, sampled.row_index, stages)
    return scaled.masked_fill(scaled < floor.unsqueeze(1), float("-inf")).softmax(-1)[0]
