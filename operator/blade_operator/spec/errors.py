"""Validation errors of an LLMService: one line for each field, with its path and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One field and what to change there."""

    path: str
    """``spec.engine.env[0].name``."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class SpecError(ValueError):
    """An LLMService that cannot be run as written. ``problems`` holds every one found, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))
