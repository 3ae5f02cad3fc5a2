"""The slopes of ALiBi (Press et al., arXiv 2108.12409)."""

from __future__ import annotations


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Of ``heads`` heads: a geometric series that ends at 1/256 for a power of two. Of other numbers the series for the
    next lower power of two, and then every other slope of the series for twice as many."""
    whole = 1 << (heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * (i + 1) / whole) for i in range(whole)]
    between = [2.0 ** (-4.0 * (2 * i + 1) / whole) for i in range(heads - whole)]
    return (*first, *between)
