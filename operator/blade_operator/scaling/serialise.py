"""What an autoscaler remembers as a short text, which the status of its service keeps for an operator that restarts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgspec

from blade_operator.scaling.memory import Memory

_DIGITS: Final = 5
"""Significant ones of numbers that are no times."""
_TIME: Final = 1e8
"""Numbers above are times, and rounded to seconds."""
LONGEST: Final = 8000
"""Characters; what is longer is not kept."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The text's content."""

    at: float = 0.0
    """Unix time of the last decision."""
    memory: Memory = field(default_factory=Memory)
    replicas: int = -1
    """``spec.replicas`` when this mode began, which it does not read; -1: not known."""


def dump(saved: Saved) -> str:
    """``saved`` as text; empty when that would be too long."""
    text = msgspec.json.encode(_rounded(asdict(saved))).decode()
    return text if len(text) <= LONGEST else ""


def load(text: str) -> Saved | None:
    """What :func:`dump` made ``text`` of; None when it is nothing of the kind: of another release, or edited."""
    try:
        return msgspec.json.decode(text, type=Saved)
    except (msgspec.DecodeError, ValueError, TypeError):
        return None


def numbers(saved: Saved) -> list[float]:
    """All that was learnt about engines, to tell what has changed."""
    return list(_flat(asdict(saved.memory.capacity)))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return round(value) if abs(value) >= _TIME else float(f"{value:.{_DIGITS}g}")
    return value


def _flat(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for each in value.values() for number in _flat(each)]
    if isinstance(value, (list, tuple)):
        return [number for each in value for number in _flat(each)]
    return [float(value)] if isinstance(value, (int, float)) else []
