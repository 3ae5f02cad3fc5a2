"""File descriptors of this process: how many it may have, and how many of them are for one purpose."""

from __future__ import annotations

import resource
from typing import Final

_WANTED: Final = 1 << 16
"""Descriptors beyond which more are of no use here."""


def raise_limit() -> None:
    """Raise the soft limit of open files as far as it is of use: some container runtimes begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def affordable(most: int, share: float) -> int:
    """``most``, or as many as a share of the descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, int(share * soft))
