"""Collectives of ranks that share a host's memory, in C++: what whole decoder layers in one call need between them.

What defines them is :class:`blade_llm.parallel.group.RankGroup`; there is no form in plain torch here, because
torch.distributed is one (:mod:`blade_llm.parallel.torch_group`).
"""

from __future__ import annotations

from typing import Final

from blade_llm.kernels.backend import torch_only
from blade_llm.kernels.native import library

MAX_RANKS: Final = 32
"""As in segment.h."""


class CollectiveError(RuntimeError):
    """A collective failed, and so will all that follow: the ranks do not know of each other where they are."""


class RankLostError(CollectiveError):
    """Another rank exited, or did not come to a collective in time; the message names it where it is known."""


def is_available() -> bool:
    """Whether ranks on this host can meet in shared memory."""
    return not torch_only() and library() is not None
