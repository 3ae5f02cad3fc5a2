"""What users declare of LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterDeclaration:
    """One adapter that a service is to serve."""

    name: str
    uri: str
    replicas: int | None = None
    """Engines that are to have it; None: all."""
    preload: bool = True
    weight: int = 1
    pinned: bool = False
    model: str = ""
    """What requests call it."""
    source: str = "spec"
    """``spec``, or the name of its LoRAAdapter."""
