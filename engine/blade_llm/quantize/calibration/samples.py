"""Texts as the tokens that calibration computes: so many, so long, and some of them held out to judge the result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import torch
from torch import Tensor

from blade_llm.models.errors import ModelFilesError
from blade_llm.offline_images import TokenPrompt
from blade_llm.spec.vision.images import ImagePixels, ImageSpan

T = TypeVar("T")
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
    images: tuple[tuple[ImageSpan, ...], ...] = ()
    """Of each sample; empty where none has any."""
    pixels: Mapping[bytes, ImagePixels] = field(default_factory=dict, repr=False)
    """By digest, of all of them."""

    def is_text(self, index: int) -> Tensor:
        """Whether each token of a sample is one of text, [tokens] bool."""
        found = torch.ones(len(self.token_ids[index]), dtype=torch.bool)
        for image in self.images[index] if self.images else ():
            found[image.start : image.end] = False
        return found

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
        """SHA-256 of all tokens and images, hexadecimal."""
        found = hashlib.sha256()
        for ids in self.token_ids:
            found.update(len(ids).to_bytes(8, "little"))
            found.update(ids.numpy().tobytes())
        for index, images in enumerate(self.images):
            for image in images:
                found.update(index.to_bytes(8, "little") + image.start.to_bytes(8, "little") + image.digest)
        return found.hexdigest()


def make_samples(
    texts: Sequence[T],
    encode: Callable[[Sequence[T]], Sequence[TokenPrompt]],
    *,
    most: int,
    length: int,
    max_positions: int,
    vocab_size: int,
) -> Samples:
    """``most`` of ``texts``, evenly spread where there are more, each cut after ``length`` tokens of text; those of
    images count only for ``max_positions``.

    Raises :class:`ModelFilesError` where no text has a token, or one that the model does not have.
    """
    notes = []
    chosen = list(texts)
    if len(texts) > most:
        chosen = [texts[index * len(texts) // most] for index in range(most)]
        notes.append(f"{most} of {len(texts)} texts are used, evenly spread; --calib_samples takes more")
    encoded = [prompt for prompt in encode(chosen) if prompt.token_ids]
    if not encoded:
        raise ModelFilesError("the calibration texts have no tokens; give texts like those that the model will see")
    largest = max(max(prompt.token_ids) for prompt in encoded)
    if largest >= vocab_size:
        raise ModelFilesError(f"the tokenizer has token id {largest}, the model only {vocab_size} ids")
    ends = [_end(prompt, length, max_positions) for prompt in encoded]
    longer = sum(len(prompt.token_ids) > end for prompt, end in zip(encoded, ends, strict=True))
    if longer:
        notes.append(f"{longer} of {len(encoded)} texts are cut after {length} tokens; --calib_length takes more")
    if len(encoded) == 1:
        notes.append("one calibration text is little: give 100 to 1,000 like those that the model will see")
    elif len(encoded) < _HELD_OUT_OF:
        notes.append(f"{len(encoded)} calibration texts are few: none is held out, so perplexity is that of them all")
    places = range(_HELD_OUT_OF - 1, len(encoded), _HELD_OUT_OF)[:_MOST_HELD_OUT]
    order = [*(index for index in range(len(encoded)) if index not in places), *places]
    tokens = tuple(torch.tensor(encoded[index].token_ids[: ends[index]], dtype=torch.int64) for index in order)
    images = tuple(tuple(each for each in encoded[index].images if each.end <= ends[index]) for index in order)
    if not any(images):
        return Samples(tokens, len(places), tuple(notes))
    pixels = {each.digest: each for prompt in encoded for each in prompt.pixels}
    shown = {image.digest: pixels[image.digest] for some in images for image in some}
    return Samples(tokens, len(places), tuple(notes), images, shown)


def _end(prompt: TokenPrompt, length: int, max_positions: int) -> int:
    """How many tokens of it are used: ``length`` of text, and images that are whole."""
    end, left = 0, length
    for image in prompt.images:
        text = image.start - end
        if text >= left or image.end > max_positions:
            return min(end + min(text, left), max_positions)
        left -= text
        end = image.end
    return min(end + left, max_positions, len(prompt.token_ids))


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
