"""What one run measures, from its environment: a run may take parts of a table, and add them to those of others."""

from __future__ import annotations

import os
from collections.abc import Sequence

from benchmarks.figures import QUICK

ROUNDS = int(os.environ.get("ROUNDS") or (3 if QUICK else 5))


def selected(variable: str, everything: Sequence[str]) -> list[str]:
    """The names that ``variable`` lists, separated by commas; all of ``everything`` where it is not set.

    Raises:
        SystemExit: one of them is none.
    """
    wanted = [name for name in os.environ.get(variable, "").split(",") if name]
    if unknown := [name for name in wanted if name not in everything]:
        raise SystemExit(f"{variable}: {', '.join(unknown)} is none of {', '.join(everything)}")
    return [name for name in everything if not wanted or name in wanted]
