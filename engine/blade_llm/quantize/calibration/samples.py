"""Texts as the tokens that calibration computes: so many, so long, and some of them held out to judge the result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from blade_llm.models.errors import ModelFilesError

_HELD_OUT_OF: Final = 8
"""Every so manyth sample is held out."""
_MOST_HELD_OUT: Final = 16
_BATCH_TOKENS: Final = 2048
"""Tokens that are computed together; one sample may be longer."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Those to calibrate with, then those that are held out."""

    token_ids: tuple[Tensor, ...]
    """[tokens] int64 each."""
    held_out: int
    """So many at the end are not calibrated with; 0 of few samples: then all of them judge the result, too."""
    notes: tuple[str, ...]
    """What a user should know of them."""

    @property
    def judges(self) -> range:
        """The samples whose perplexity is measured."""
        return range(len(self.token_ids) - self.held_out if self.held_out else 0, len(self.token_ids))

    @property
    def calibrating(self) -> range:
        return range(len(self.token_ids) - self.held_out)

    @property
    def tokens(self) -> int:
        """Tokens to calibrate with."""
        return sum(len(self.token_ids[index]) for index in self.calibrating)

    @property
    def digest(self) -> str:
        """SHA-256 of all tokens, hexadecimal."""
        found = hashlib.sha256()
        for ids in self.token_ids:
            found.update(len(ids).to_bytes(8, "little"))
            found.update(ids.numpy().tobytes())
        return found.hexdigest()


def make_samples(
    texts: Sequence[str], encode: Callable[[str], list[int]], *, most: int, length: int, vocab_size: int
) -> Samples:
    """``most`` of ``texts``, evenly spread where there are more, each cut after ``length`` tokens.

    Raises :class:`ModelFilesError` where no text has a token, or one that the model does not have.
    """
    notes = []
    chosen = list(texts)
    if len(texts) > most:
        chosen = [texts[index * len(texts) // most] for index in range(most)]
        notes.append(f"{most} of {len(texts)} texts are used, evenly spread; --calib_samples takes more")
    encoded = [ids for text in chosen if (ids := encode(text))]
    if not encoded:
        raise ModelFilesError("the calibration texts have no tokens; give texts like those that the model will see")
    largest = max(map(max, encoded))
    if largest >= vocab_size:
        raise ModelFilesError(f"the tokenizer has token id {largest}, the model only {vocab_size} ids")
    longer = sum(len(ids) > length for ids in encoded)
    if longer:
        notes.append(f"{longer} of {len(encoded)} texts are cut after {length} tokens; --calib_length takes more")
    if len(encoded) == 1:
        notes.append("one calibration text is little: give 100 to 1,000 like those that the model will see")
    elif len(encoded) < _HELD_OUT_OF:
        notes.append(f"{len(encoded)} calibration texts are few: none is held out, so perplexity is that of them all")
    tensors = [torch.tensor(ids[:length], dtype=torch.int64) for ids in encoded]
    places = range(_HELD_OUT_OF - 1, len(tensors), _HELD_OUT_OF)[:_MOST_HELD_OUT]
    kept = [ids for index, ids in enumerate(tensors) if index not in places]
    held_out = [tensors[index] for index in places]
    return Samples((*kept, *held_out), len(held_out), tuple(notes))


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples that are computed together."""

    samples: range
    rows: slice
    """Their tokens among those of all samples."""


def batches_of(samples: Samples, some: range) -> list[Batch]:
    """``some`` of the samples in order, as many together as :data:`_BATCH_TOKENS` allow."""
    found: list[Batch] = []
    begin = sum(len(ids) for ids in samples.token_ids[: some.start])
    first, tokens = some.start, 0
    for index in some:
        length = len(samples.token_ids[index])
        if tokens and tokens + length > _BATCH_TOKENS:
            found.append(Batch(range(first, index), slice(begin, begin + tokens)))
            begin, first, tokens = begin + tokens, index, 0
        tokens += length
    found.append(Batch(range(first, some.stop), slice(begin, begin + tokens)))
    return found
