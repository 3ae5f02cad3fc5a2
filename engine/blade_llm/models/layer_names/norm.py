"""Where checkpoints have the tensors of a norm."""

from __future__ import annotations

from blade_llm.spec.norm import NormSpec
from blade_llm.spec.tensors import TensorPart


def map_norm(tensors: dict[str, TensorPart], place: str, module: str, spec: NormSpec, size: int) -> None:
    """Add to ``tensors`` those of the norm at ``place`` in the model, ``module`` in the checkpoint, over ``size``
    dimensions."""
    tensors[f"{place}.weight"] = TensorPart(f"{module}.weight", (size,))
    if spec.bias:
        tensors[f"{place}.bias"] = TensorPart(f"{module}.bias", (size,))
