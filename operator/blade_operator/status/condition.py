"""One condition of a status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition without its transition time."""

    type: str
    status: Status
    reason: str
    message: str = ""
