"""Kubernetes objects as JSON, and the types that name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
"""A Kubernetes object as the API server returns it."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Namespace and name of one LLMService."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Kind, namespace and name of one object."""

    kind: str
    namespace: str
    name: str

    @staticmethod
    def of(obj: Object) -> Ref:
        """The reference of ``obj``."""
        metadata = obj["metadata"]
        return Ref(obj["kind"], metadata["namespace"], metadata["name"])
