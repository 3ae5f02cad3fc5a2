"""How a rank waits, which shows that it does not hang: see :mod:`blade_llm.engine.ranks.hangs`."""

from __future__ import annotations

from typing import Final

LONGEST_SLEEP: Final = 0.5
"""Seconds. A rank's main thread never sleeps for longer at a stretch, whatever it waits for: a step, a collective, or
the stage before. The kernel counts how often it has slept."""
