"""Status deduplication: a text that differs from the one already written only in its figures is not written again.

Kubelets, schedulers and quotas put counts, times and addresses into their messages, and a container in a crash loop
fails again every few minutes. Each of these as a write would wake every watcher for nothing new.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Final

_NUMBER: Final = re.compile(r"(?<![\w-])\d+(?:[.:]\d+)*")
"""A number on its own; digits inside a name do not match."""
_COUNTS: Final = (0, 1, 2, 3, 4, 5, 10, 20, 50, 100, 200, 500, 1000)


def deduplicate(before: str, now: str) -> str:
    """``before`` when ``now`` differs from it only in numbers, else ``now``."""
    return before if _NUMBER.sub("0", before) == _NUMBER.sub("0", now) else now


def round_down(count: int) -> int:
    """``count`` rounded down to a step: exact up to 5, then 10, 20, 50, 100 …"""
    return _COUNTS[bisect_right(_COUNTS, max(0, count)) - 1]


def round_total(total: int) -> int:
    """A counter that grows for ever, rounded down to 1,000, 2,000, 5,000, 10,000 and so on; 0 below."""
    if total < _COUNTS[-1]:
        return 0
    unit = int("1" + "0" * (len(str(total)) - 1))
    return unit * max(step for step in (1, 2, 5) if step * unit <= total)
