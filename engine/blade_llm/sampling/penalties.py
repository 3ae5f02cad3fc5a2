"""Repetition, frequency and presence penalties, computed from the token table of the device.

Nothing is counted from step to step: the tokens themselves are the state, so a request that re-enters after a
preemption, or whose last token is still unknown to the host, needs no extra care.
"""

from __future__ import annotations

import torch
from torch import Tensor


def apply_penalties(
    logits: Tensor,
    tokens: Tensor,
    num_prompt_tokens: Tensor,
    lengths: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """The penalised copy of ``logits`` ([rows, vocabulary] fp32).

    ``tokens``: [rows, longest] int64, of which row i's first ``lengths[i]`` count, and of those the ones from
    ``num_prompt_tokens[i]`` on are output. Repetition (Keskar et al., arXiv 1909.05858) divides positive and multiplies
    negative logits of any token in prompt or output; ``frequency`` is subtracted per occurrence in the output and
    ``presence`` once. All others: [rows].
    """
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    present = columns < lengths.unsqueeze(1)
    output = present & (columns >= num_prompt_tokens.unsqueeze(1))
    tokens = tokens.where(present, 0)
    seen = torch.zeros_like(logits).scatter_add_(1, tokens, present.to(logits.dtype)) > 0
    counts = torch.zeros_like(logits).scatter_add_(1, tokens, output.to(logits.dtype))
    factor = repetition.unsqueeze(1)
    logits = torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
    logits -= counts * frequency.unsqueeze(1)
    logits -= (counts > 0) * presence.unsqueeze(1)
    return logits
