"""Which rows of the embedding table and of the output matrix a rank has."""

from __future__ import annotations


def vocabulary_width(vocab_size: int, size: int) -> int:
    """Rows of each of ``size`` ranks but the last, which may have fewer."""
    return -(-vocab_size // size)


def vocabulary_rows(vocab_size: int, rank: int, size: int) -> range:
    """Rows of ``rank``: token ids. Empty where the ranks before it have all."""
    width = vocabulary_width(vocab_size, size)
    return range(min(rank * width, vocab_size), min((rank + 1) * width, vocab_size))
