"""How each kind of model wants its images resized, equal to transformers' processors for PIL images.

The records are read from a model's files once and sent to the worker processes. Only :meth:`process`, which runs there,
needs Pillow; API-server processes ask for counts and bounds.
"""

from __future__ import annotations

from blade_llm.multimodal.processors.qwen import QwenProcessor
from blade_llm.multimodal.processors.tiled import TiledProcessor

ImageProcessor = QwenProcessor | TiledProcessor

__all__ = ["ImageProcessor", "QwenProcessor", "TiledProcessor"]
