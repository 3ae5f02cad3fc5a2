"""Prompts of a wanted number of tokens, out of common words.

Every prompt is made anew, so that a server's prefix cache has no part in the figures. Without the server's tokenizer
its tokens per word are measured first (:mod:`blade_llm.benchmark.calibration`); with it, prompts are exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from blade_llm.benchmark.errors import BenchmarkError

_TEXT: Final = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you were her all she there would their we him been has when who will more no if out so said what up its
about into than them can only other new some could time these two may then do first any my now such like our
over man me even most made after also did many before must through back years where much your way well down
should because each just those people how too little state good very make world still own see men work long
get here between both life being under never day same another know while last might us great old year off come
since against go came right used take three water house light hand paper small large number table story north
river music school
"""
COMMON: Final = tuple(_TEXT.split())

Counter = Callable[[str], int]


class PromptMaker(Protocol):
    """Makes texts."""

    def prompt(self, tokens: int, random_source: random.Random) -> str:
        """A text that makes a prompt of about ``tokens`` tokens, whatever the server puts around it included."""


@dataclass(frozen=True, slots=True)
class TokenRate:
    """How a server's tokens grow with words: ``overhead + per_word * words``."""

    overhead: float = 0.0
    """The chat template's tokens, or the begin token."""
    per_word: float = 1.3
    """For want of a measurement: what English takes on average."""

    def prompt(self, tokens: int, random_source: random.Random) -> str:
        count = max(1, round((tokens - self.overhead) / self.per_word))
        return random_words(count, random_source)


class ExactWords:
    """Prompts measured with the server's own tokenizer, ``overhead`` tokens of the server around them."""

    def __init__(self, count: Counter, overhead: int = 0) -> None:
        self._count = count
        self._overhead = overhead
        self._per_word = count(" ".join(COMMON)) / len(COMMON)
        self._filler = min(COMMON, key=lambda word: count(f"of {word}"))

    def prompt(self, tokens: int, random_source: random.Random) -> str:
        """Make a prompt of exactly ``tokens`` tokens, up to the last word's."""
        wanted = max(1, tokens - self._overhead)
        words: list[str] = []
        while (missing := wanted - self._count(" ".join(words))) > 0:
            words += random_source.choices(COMMON, k=max(1, int(missing / self._per_word)))
        while len(words) > 1 and self._count(" ".join(words)) > wanted:
            words.pop()
        for _ in range(wanted - self._count(" ".join(words))):
            if self._count(" ".join([*words, self._filler])) <= wanted:
                words.append(self._filler)
        return " ".join(words)


def random_words(count: int, random_source: random.Random) -> str:
    return " ".join(random_source.choices(COMMON, k=count))


def token_counter(folder: Path) -> Counter:
    """Counts tokens by ``folder``'s ``tokenizer.json``, without special ones. Raises :class:`BenchmarkError`."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise BenchmarkError(f"{file} is missing; give --tokenizer the folder of the served model")
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise BenchmarkError(f"{file} cannot be used: {error}") from None
    tokenizer.no_truncation()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    if count(" ".join(COMMON)) < len(COMMON) / 2:
        raise BenchmarkError(f"{file} does not know English words; leave out --tokenizer, then tokens are measured")
    return count
