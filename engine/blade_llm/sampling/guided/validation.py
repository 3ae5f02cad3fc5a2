"""Validates grammar specs in the API server, without the model's tokenizer, before they go to the engine.

The texts are checked by ourselves first (size, keywords, recursion), then compiled by llguidance for a vocabulary of
bytes. That needs about a millisecond, but a few patterns in a short schema can take seconds, so it happens in threads:
the event loop serves others meanwhile. Results are cached, errors too, but not time-outs: the machine may have been
busy.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import llguidance
import numpy as np

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided import limits
from blade_llm.sampling.guided.checks import check_text
from blade_llm.sampling.guided.errors import BusyError, GrammarSpecError, as_grammar_spec_error, readable
from blade_llm.sampling.guided.matcher import MatcherGrammar
from blade_llm.sampling.guided.text import grammar_text
from blade_llm.sampling.guided.threads import DaemonThreads
from blade_llm.sampling.masks import mask_words

_THREADS: Final = 2
_MAX_CACHED: Final = 512
_MAX_CACHED_CHARACTERS: Final = 4 * 2**20
_BYTES: Final = 256


def validate(spec: GrammarSpec) -> tuple[str, ...]:
    """Raise :class:`GrammarSpecError` for a grammar spec that cannot be followed. Blocks while it compiles.

    Returns the places in a JSON Schema, as JSON pointers, that outputs are not held to.
    """
    unheld = check_text(spec)
    grammar = grammar_text(spec)
    if spec.kind == "grammar":
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, limits=limits.parser_limits())
        if not failed and any("no tokenizer" in message for message in messages):
            return unheld  # names special tokens, which only the engine knows
    _compile(grammar)
    return unheld


@dataclass(frozen=True, slots=True)
class _Finding:
    problem: str | None
    unheld: tuple[str, ...] = ()


class Validator:
    """:func:`validate` for an event loop: in threads, with a time limit and a cache."""

    closes_objects: bool = True
    """Objects of requests' schemas take no keys that they do not list, unless a schema says otherwise."""

    def __init__(self, seconds: float = limits.COMPILE_SECONDS) -> None:
        self._seconds = seconds
        self._threads = DaemonThreads(_THREADS, "validate")
        self._free = asyncio.Semaphore(_THREADS)
        """Free threads: the time limit of a spec begins when one takes it up."""
        self._running: dict[GrammarSpec, asyncio.Future[_Finding]] = {}
        """Also those that took too long: a second request for one waits for the same thread."""
        self._cached: OrderedDict[GrammarSpec, _Finding] = OrderedDict()
        """Least recently used first."""
        self._characters = 0

    async def validate(self, spec: GrammarSpec) -> tuple[str, ...]:
        """Raise :class:`GrammarSpecError` for a grammar spec that cannot be followed; else as :func:`validate`.

        Raises :class:`BusyError` when no thread becomes free to find out.
        """
        if spec in self._cached:
            self._cached.move_to_end(spec)
            found = self._cached[spec]
        else:
            found = await self._find(spec)
        if found.problem is not None:
            raise GrammarSpecError(found.problem)
        return found.unheld

    def close(self) -> None:
        """Validate nothing more. Nobody waits for threads that are at work."""
        self._threads.close()

    async def _find(self, spec: GrammarSpec) -> _Finding:
        if spec not in self._running:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._free.acquire()
            except TimeoutError:
                raise BusyError("the server is busy with other schemas and grammars; try again") from None
            if spec in self._running:  # another request came first
                self._free.release()
            else:
                self._begin(spec)
        found = self._running[spec]
        done, _ = await asyncio.wait((found,), timeout=self._seconds)
        if done:
            return found.result()
        raise GrammarSpecError(
            f"validating took longer than the limit of {self._seconds:g} s; {limits.STEP_LIMIT_ADVICE}"
        )

    def _begin(self, spec: GrammarSpec) -> None:
        found = asyncio.wrap_future(self._threads.submit(_validated, spec))
        self._running[spec] = found
        found.add_done_callback(lambda found: self._end(spec, found))

    def _end(self, spec: GrammarSpec, found: asyncio.Future[_Finding]) -> None:
        self._free.release()
        del self._running[spec]
        if not found.cancelled() and found.exception() is None:
            self._store(spec, found.result())

    def _store(self, spec: GrammarSpec, found: _Finding) -> None:
        if spec in self._cached or len(spec.value) > _MAX_CACHED_CHARACTERS // 8:
            return
        self._cached[spec] = found
        self._characters += len(spec.value)
        while len(self._cached) > _MAX_CACHED or self._characters > _MAX_CACHED_CHARACTERS:
            oldest, _ = self._cached.popitem(last=False)
            self._characters -= len(oldest.value)


def _validated(spec: GrammarSpec) -> _Finding:
    try:
        return _Finding(None, validate(spec))
    except BaseException as error:
        return _Finding(str(as_grammar_spec_error(error)))


def _compile(grammar: str) -> None:
    """Raise :class:`GrammarSpecError` when llguidance cannot compile ``grammar`` or nothing can satisfy it."""
    matcher = llguidance.LLMatcher(_byte_vocabulary(), grammar, log_level=0, limits=limits.parser_limits())
    if matcher.is_error():
        raise GrammarSpecError(readable(matcher.get_error()))
    mask = np.zeros(mask_words(_BYTES + 1), np.int32)
    try:
        MatcherGrammar(matcher, frozenset({_BYTES})).fill(mask)
    except GrammarSpecError:
        raise GrammarSpecError(f"no answer can satisfy it; {limits.STEP_LIMIT_ADVICE}") from None
    if not mask[:-1].any():
        raise GrammarSpecError("only the empty answer satisfies it")


class _Bytes:
    """A tokenizer whose tokens are the bytes; the end of sequence comes after them."""

    eos_token_id = _BYTES
    bos_token_id = None
    tokens: Final = [*(bytes([byte]) for byte in range(_BYTES)), b"<eos>"]
    special_token_ids: Final = [_BYTES]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@lru_cache(maxsize=1)
def _byte_vocabulary() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))
