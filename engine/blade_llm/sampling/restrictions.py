"""What an output may not have: tokens that are not among its allowed ones, and bad words. No torch.

A bad word is a sequence of tokens that the output may not complete: where the output ends with all of it but its last
token, that token is forbidden. Both are vLLM's ``bad_words`` and ``allowed_token_ids``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from blade_llm.sampling.masks import mask_words


@dataclass(frozen=True, slots=True)
class BadWords:
    """The bad words of a request that have several tokens. Their last tokens, each once, are :attr:`last_tokens`."""

    last_tokens: tuple[int, ...]
    places: np.ndarray
    """[words] int64: of each word's last token among :attr:`last_tokens`."""
    words: np.ndarray
    """[tokens before the last] int64: the word that each belongs to."""
    distances: np.ndarray
    """[tokens before the last] int64: how far before the sampled position each has to stand, at least 1."""
    tokens: np.ndarray
    """[tokens before the last] int64."""


def bad_words_of(sequences: Iterable[Sequence[int]]) -> BadWords | None:
    """The words of several tokens among ``sequences``; None for none."""
    several = [sequence for sequence in sequences if len(sequence) > 1]
    if not several:
        return None
    last_tokens = {token: place for place, token in enumerate(dict.fromkeys(each[-1] for each in several))}
    lengths = [len(each) - 1 for each in several]
    ends = np.array(list(accumulate(lengths)), dtype=np.int64)
    words = np.repeat(np.arange(len(several), dtype=np.int64), lengths)
    distances = ends[words] - np.arange(len(words), dtype=np.int64)
    return BadWords(
        tuple(last_tokens),
        np.array([last_tokens[each[-1]] for each in several], dtype=np.int64),
        words,
        distances,
        np.array([token for each in several for token in each[:-1]], dtype=np.int64),
    )


def forbidden_tokens(bad_words: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The bad words of a single token, which may never come."""
    return tuple(sequence[0] for sequence in bad_words if len(sequence) == 1)


def allowed_mask(allowed: Sequence[int] | None, forbidden: Iterable[int], vocab_size: int) -> np.ndarray:
    """The bits of ``allowed`` (None: of all tokens) without those of ``forbidden``: [mask_words(vocab_size)] int32, as
    :class:`~blade_llm.sampling.masks.TokenMasks` has them. Ids beyond the vocabulary are left out."""
    bits = np.zeros(mask_words(vocab_size) * 32, dtype=np.uint8)
    if allowed is None:
        bits[:vocab_size] = 1
    else:
        ids = np.array(allowed, dtype=np.int64)
        bits[ids[ids < vocab_size]] = 1
    bits[[token for token in forbidden if token < vocab_size]] = 0
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)


def word_sequences(words: Iterable[str], encode: Callable[[str], list[int]]) -> tuple[tuple[int, ...], ...]:
    """The token sequences of bad words: each without and with a space before it, as words stand at the beginning and
    inside of a text. What would be completed by completing another sequence of the same word is left out.

    ``encode``: tokens of a text, without special tokens.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip() or word
        first, spaced = tuple(encode(bare)), tuple(encode(f" {bare}"))
        if first:
            found[first] = None
        if spaced and (not first or spaced[-len(first) :] != first):
            found[spaced] = None
    return tuple(found)
