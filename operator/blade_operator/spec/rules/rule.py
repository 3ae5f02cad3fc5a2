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
    details: str = ""
    """What is too long for the CRD: added to the message where that is not read from there."""

    @property
    def full_message(self) -> str:
        """The message, with the details if there are any."""
        return f"{self.message}: {self.details}" if self.details else self.message

    @property
    def schema(self) -> dict[str, str]:
        """The rule as it stands in the CRD."""
        below = self.field.removeprefix(".".join(self.at))
        path = below if below.startswith(".") or not below else f".{below}"
        return {"rule": self.cel, "message": self.message, **({"fieldPath": path} if path else {})}
