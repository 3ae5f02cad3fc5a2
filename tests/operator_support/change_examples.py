"""For each rule on changes: caches of models that may become another, and some that may not. An API server must decide
as we do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from operator_support.rule_example import HUB


@dataclass(frozen=True)
class Change:
    """What ``spec.model.cache`` was and what it becomes; ``breaks`` as of `Example`."""

    breaks: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    def service(self, cache: dict[str, Any] | None, name: str = "qwen") -> dict[str, Any]:
        """The LLMService with that cache, without engines."""
        return {
            "apiVersion": "serving.bladellm.io/v1alpha1",
            "kind": "LLMService",
            "metadata": {"name": name},
            "spec": {"model": {"uri": HUB, **({} if cache is None else {"cache": cache})}, "replicas": 0},
        }


_CACHE = "spec.model.cache"
CHANGES: tuple[Change, ...] = (
    Change("", {"size": "20Gi"}, {"size": "20Gi", "accessModes": ["ReadWriteOnce"]}),
    Change("", {"size": "20Gi"}, {"size": "20480Mi"}),
    Change("", {"size": 5}, {"size": "1Gi"}),
    Change("", {"size": "1Gi", "storageClassName": "fast"}, {"size": "2Gi", "storageClassName": "fast"}),
    Change("", {"size": "20Gi", "storageClassName": "fast"}, {"claimName": "models"}),
    Change("", {"claimName": "models"}, {"size": "1Gi", "storageClassName": "slow"}),
    Change("", {"size": "20Gi"}, None),
    Change("", {}, {"size": "1Gi", "accessModes": ["ReadWriteMany"]}),
    Change(
        "",
        {"size": "1Gi", "accessModes": ["ReadWriteMany", "ReadWriteOnce"]},
        {"size": "1Gi", "accessModes": ["ReadWriteOnce", "ReadWriteMany"]},
    ),
    Change(f"{_CACHE}.size", {"size": "20Gi"}, {"size": "20479Mi"}),
    Change(f"{_CACHE}.size", {"size": "20Gi"}, {"size": 5}),
    Change(f"{_CACHE}.storageClassName", {"size": "1Gi"}, {"size": "1Gi", "storageClassName": "fast"}),
    Change(f"{_CACHE}.storageClassName", {"size": "1Gi", "storageClassName": "fast"}, {"size": "1Gi"}),
    Change(
        f"{_CACHE}.storageClassName",
        {"size": "1Gi", "storageClassName": "fast"},
        {"size": "1Gi", "storageClassName": "slow"},
    ),
    Change(f"{_CACHE}.accessModes", {"size": "1Gi"}, {"size": "1Gi", "accessModes": ["ReadWriteMany"]}),
    Change(f"{_CACHE}.accessModes", {"size": "1Gi", "accessModes": ["ReadWriteMany"]}, {"size": "1Gi"}),
    Change(
        f"{_CACHE}.accessModes",
        {"size": "1Gi", "accessModes": ["ReadWriteOnce"]},
        {"size": "1Gi", "accessModes": ["ReadWriteOnce", "ReadWriteMany"]},
    ),
)
