"""Requests at the moment of sampling, without a runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from engine_support.token_masks import masks_for

from blade_llm.sampling.masks import TokenMasks
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.sampling.sampler import SampledSlots, Sampler, SamplerOutput
from blade_llm.sampling.stages import stages_of
from blade_llm.sampling.table import SamplingTable

CPU = torch.device("cpu")


@dataclass
class Slot:
    """A request at the moment of sampling."""

    params: SamplingParams
    tokens: list[int] = field(default_factory=lambda: [3, 1, 4])
    prompt: int = 3
    sample_index: int = 0
    masked: tuple[int, ...] = ()


def sampler_for(slots: dict[int, Slot]) -> tuple[Sampler, SampledSlots]:
    table = SamplingTable(16, CPU)
    token_ids = torch.full((16, 64), 7, dtype=torch.int32)  # garbage beyond each slot's end
    for index, slot in slots.items():
        table.write(
            index,
            slot.params,
            num_prompt_tokens=slot.prompt,
            sample_index=slot.sample_index,
            masked_until_min_tokens=slot.masked,
        )
        token_ids[index, : len(slot.tokens)] = torch.tensor(slot.tokens)
    indices, positions = list(slots), [len(slot.tokens) for slot in slots.values()]
    return Sampler(table, token_ids), SampledSlots(indices, positions, torch.tensor(indices), torch.tensor(positions))


def sample(slots: dict[int, Slot], logits: torch.Tensor, masks: TokenMasks | None = None) -> SamplerOutput:
    sampler, sampled = sampler_for(slots)
    return sampler.sample(logits, sampled, masks)


def probabilities(slot: Slot, logits: torch.Tensor, allowed: Sequence[int] | None = None) -> torch.Tensor:
    """What the sample's argmax is over, as probabilities; ``logits``: [vocabulary]; ``allowed``: its mask."""
    sampler, sampled = sampler_for({5: slot})
    masks = None if allowed is None else masks_for([5], {5: allowed}, len(logits))
    stages = stages_of(sampled, sampler._table, CPU, masks, vocab_size=len(logits))
    changed = sampler.changed(logits.unsqueeze(0), sampled, stages)
    scaled, floor = sampler.filtered(changed, sampled.slot_index, stages)
    return scaled.masked_fill(scaled < floor.unsqueeze(1), float("-inf")).softmax(-1)[0]
