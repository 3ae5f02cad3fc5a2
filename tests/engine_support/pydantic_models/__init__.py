"""200 pydantic models as clients write them: every standard type, structures by hand, and generated ones."""

from __future__ import annotations

from engine_support.pydantic_models.by_hand import BY_HAND
from engine_support.pydantic_models.generated import generated_models
from engine_support.pydantic_models.standard_types import STANDARD, STRICTER_THAN_THEIR_SCHEMA
from pydantic import BaseModel

MODELS: dict[str, type[BaseModel]] = {**STANDARD, **BY_HAND, **generated_models(200 - len(STANDARD) - len(BY_HAND))}
"""Name → model."""

__all__ = ["MODELS", "STRICTER_THAN_THEIR_SCHEMA"]
