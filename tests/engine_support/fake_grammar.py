"""Grammars of token ids: a list of places with the tokens allowed there. Compiled at once, or when a test says so.

A grammar spec's value is the JSON of the list. ``[]`` as the last place stands for the end of the sequence, which must
then be sampled; without it the output is finished after the last place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.scheduling.grammar import Grammar

EOS = 2


def grammar_spec_of(places: Sequence[Sequence[int]]) -> GrammarSpec:
    """What :class:`FakeGrammars` reads."""
    return GrammarSpec("json", json.dumps([list(place) for place in places]))


def allowed_tokens(words: np.ndarray) -> set[int]:
    """The tokens that one row of a mask allows."""
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


class FakeGrammar:
    """Implements :class:`blade_llm.scheduling.grammar.Grammar`."""

    def __init__(self, places: Sequence[Sequence[int]], position: int = 0) -> None:
        self._places = [set(place) or {EOS} for place in places]
        self._position = position
        self.broken = False
        """The next :meth:`accept` raises."""

    @property
    def finished(self) -> bool:
        return self._position == len(self._places)

    def allowed(self) -> set[int]:
        """May come next."""
        return set() if self.finished else self._places[self._position]

    def accept(self, token_ids: list[int]) -> None:
        for token in token_ids:
            if self.broken or token not in self.allowed():
                raise ValueError(f"token {token} is not allowed at {self._position}")
            self._position += 1

    def forced(self) -> list[int]:
        tokens = []
        for place in self._places[self._position :]:
            if len(place) > 1 or EOS in place:
                break
            tokens += place
        return tokens

    def fill(self, mask: np.ndarray) -> None:
        bits = np.zeros(mask.size * 32, dtype=np.uint8)
        bits[sorted(self.allowed())] = 1
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def copy(self) -> FakeGrammar:
        return FakeGrammar(self._places, self._position)  # type: ignore[arg-type]


class FakeGrammars:
    """Implements :class:`blade_llm.scheduling.grammar.GrammarCompiler`; ``late``: compiled by :meth:`finish`."""

    def __init__(self, *, late: bool = False) -> None:
        self.late = late
        self.made: list[FakeGrammar] = []
        self.pending: list[tuple[GrammarSpec, Future[Grammar]]] = []

    def compile(self, spec: GrammarSpec) -> Future[Grammar]:
        future: Future[Grammar] = Future()
        self.pending.append((spec, future))
        if not self.late:
            self.finish()
        return future

    def finish(self) -> None:
        """Compile what was started."""
        for spec, future in self.pending:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                self.made.append(FakeGrammar(json.loads(spec.value)))
            except ValueError:
                future.set_exception(ValueError(f"{spec.value!r} is no structure"))
                continue
            future.set_result(self.made[-1])
        self.pending = []
