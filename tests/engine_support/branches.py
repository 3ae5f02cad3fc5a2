"""A step in which some sequences branch, as speculative decoding verifies several guesses at once."""

from __future__ import annotations

import random


def random_parents(count: int, seed: int) -> list[int]:
    """Which earlier new token each of ``count`` goes on from; the first has -1."""
    choose = random.Random(seed)
    return [-1, *(choose.randrange(max(0, index - 9), index) for index in range(1, count))]


STEP = ([1, 9, 40, 150, 25, 128], [70, 9, 300, 220, 90, 400])
"""A decode, a chain, a tree, a prefill, a tree, and one as large as there may be: new tokens, and lengths."""
BRANCHES = {1: list(range(-1, 8)), 2: random_parents(40, 1), 4: random_parents(25, 2), 5: random_parents(128, 3)}
