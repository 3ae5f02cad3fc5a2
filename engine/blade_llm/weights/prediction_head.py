"""Whether a checkpoint has what drafts for its model."""

from __future__ import annotations

from pathlib import Path

from blade_llm.models.config import ModelConfig
from blade_llm.models.heads.mtp import find_mtp
from blade_llm.weights.checkpoint import Checkpoint, check_weights


def prediction_head(folder: Path, config: ModelConfig, checkpoint: Checkpoint) -> ModelConfig | None:
    """The layer for multi-token prediction of the model in ``folder``, where the checkpoint has all of it."""
    head = find_mtp(folder, config)
    if head is None or check_weights(checkpoint, head):
        return None
    return head
