"""The record of a cross-field rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blade_operator.spec.fields import LLMServiceSpec


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule at one place of the object."""

    at: tuple[str, ...]
    """Path of the object the CEL expression calls ``self``; empty: the LLMService itself."""
    field: str
    """Path of the field to change."""
    cel: str
    holds: Callable[[str, LLMServiceSpec], bool]
    message: str

    @property
    def schema(self) -> dict[str, str]:
        """The rule as it stands in the CRD."""
        below = self.field.removeprefix(".".join(self.at))
        path = below if below.startswith(".") or not below else f".{below}"
        return {"rule": self.cel, "message": self.message, **({"fieldPath": path} if path else {})}
