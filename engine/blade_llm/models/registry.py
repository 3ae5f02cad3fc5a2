"""From a family's name to the class that computes it."""

from __future__ import annotations

from typing import Final

from blade_llm.models.llama import Llama
from blade_llm.models.qwen2 import Qwen2

MODELS: Final[dict[str, type[Llama]]] = {"llama": Llama, "qwen2": Qwen2}
"""Family (as in :mod:`blade_llm.models.families`) to class."""
