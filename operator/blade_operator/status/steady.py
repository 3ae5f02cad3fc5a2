"""Keeping a status still while nothing happens: a text whose figures alone moved is the text already written.

Kubelets, schedulers and quotas put counts, times and addresses into their messages, and a container in a crash loop
fails anew every few minutes. Each of these as a write would wake everyone who watches, for no news.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Final

_NUMBER: Final = re.compile(r"(?<![\w-])\d+(?:[.:]\d+)*")
"""A figure that stands for itself; digits inside a name are no figure."""
_COUNTS: Final = (0, 1, 2, 3, 4, 5, 10, 20, 50, 100, 200, 500, 1000)


def steady(before: str, now: str) -> str:
    """``before`` when ``now`` says the same with other figures, else ``now``."""
    return before if _NUMBER.sub("0", before) == _NUMBER.sub("0", now) else now


def round_down(count: int) -> int:
    """``count`` as worth telling: exact up to 5, then 10, 20, 50, 100 …"""
    return _COUNTS[bisect_right(_COUNTS, max(0, count)) - 1]
