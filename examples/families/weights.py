"""Random weights with which every part of a model changes its outputs."""

from __future__ import annotations

from typing import Any

import torch


@torch.no_grad()
def randomize(model: Any) -> None:
    """Fill transformers' ``model``, by torch's generator."""
    for name, parameter in model.named_parameters():
        # Away from the initial zeros and ones, so that a forgotten bias or norm weight shows.
        if name.endswith("bias"):
            parameter.normal_(0.0, 0.3)
        elif "norm" in name or "ln_" in name:
            parameter.uniform_(0.5, 1.5)
        else:
            parameter.normal_(0.0, 0.12)
