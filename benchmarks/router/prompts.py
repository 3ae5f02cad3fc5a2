"""The prompts of the workloads. They are made from a seed: every router gets the same ones in the same order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from benchmarks.router.engines import BLOCK

GROUPS = 64
"""Prefixes that prompts share."""


def filler(seed: int, size: int) -> str:
    """Text of that many characters, its own for each seed."""
    word = f"{random.Random(seed).getrandbits(60):015x} "
    return (word * (size // len(word) + 1))[:size]


def grouped(size: int, seed: int = 0, *, zipf: float = 0.0, unique: int = 0) -> Callable[[], str]:
    """Prompts of one of `GROUPS` shared prefixes of ``size`` characters, and ``unique`` ones of their own.

    Args:
        zipf: exponent of the groups' popularity; 0: all alike.
    """
    rng = random.Random(seed)
    prefixes = [filler(1000 * (seed + 1) + group, size) for group in range(GROUPS)]
    weights = list(itertools.accumulate((group + 1) ** -zipf for group in range(GROUPS)))

    def sample() -> str:
        prefix = rng.choices(prefixes, cum_weights=weights)[0]
        return f"{prefix}{rng.getrandbits(4 * unique):0{unique}x}" if unique else prefix

    return sample


def cold(blocks: int, seed: int = 0) -> Callable[[], str]:
    """Prompts that share nothing."""
    seeds = itertools.count(seed << 32)
    return lambda: filler(next(seeds), blocks * BLOCK)
