"""The names of a text model inside a model with images."""

from __future__ import annotations

from typing import Final

from blade_llm.models.names import Names

NESTED: Final = Names(
    embedding="model.language_model.embed_tokens",
    layer="model.language_model.layers.{}",
    final_norm="model.language_model.norm",
)
"""As transformers has called them in memory since 4.52, and some checkpoints in files. Families add those of their
towers."""
