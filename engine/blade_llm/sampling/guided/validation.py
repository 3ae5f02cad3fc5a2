"""Can a structure be followed? The front process answers, without the model's tokenizer, before the engine hears of it.

The texts are checked by ourselves first (size, keywords, recursion), then compiled by llguidance for a vocabulary of
bytes. That needs about a millisecond, but a few patterns in a short schema can take seconds, so it happens in threads:
the event loop serves others meanwhile. Answers are remembered, errors too, but not that one took too long: the machine
may have been busy.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import lru_cache
from typing import Final

import llguidance
import numpy as np

from blade_llm.sampling.guided import limits
from blade_llm.sampling.guided.checks import check_text
from blade_llm.sampling.guided.errors import BusyError, StructureError, as_structure_error, readable
from blade_llm.sampling.guided.matcher import MatcherGrammar
from blade_llm.sampling.guided.text import grammar_text
from blade_llm.sampling.guided.threads import DaemonThreads
from blade_llm.sampling.masks import mask_words
from blade_llm.sampling.structure import Structure

_THREADS: Final = 2
_REMEMBERED: Final = 512
_REMEMBERED_CHARACTERS: Final = 4 * 2**20
_BYTES: Final = 256


def validate(structure: Structure) -> None:
    """Raise :class:`StructureError` for a structure that cannot be followed. Blocks while it compiles."""
    check_text(structure)
    grammar = grammar_text(structure)
    if structure.kind == "grammar":
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, limits=limits.parser_limits())
        if not failed and any("no tokenizer" in message for message in messages):
            return  # names special tokens, which only the engine knows
    _compile(grammar)


class Validator:
    """:func:`validate` for an event loop: in threads, with a time limit, and remembered."""

    def __init__(self, seconds: float = limits.COMPILE_SECONDS) -> None:
        self._seconds = seconds
        self._threads = DaemonThreads(_THREADS, "validate")
        self._free = asyncio.Semaphore(_THREADS)
        """Free threads: the time limit of a structure begins when one takes it up."""
        self._running: dict[Structure, asyncio.Future[str | None]] = {}
        """Also those that took too long: asking again for one waits for the same thread."""
        self._known: OrderedDict[Structure, str | None] = OrderedDict()
        """What is wrong with a structure, or None; least recently used first."""
        self._characters = 0

    async def validate(self, structure: Structure) -> None:
        """Raise :class:`StructureError` for a structure that cannot be followed.

        Raises :class:`BusyError` when no thread becomes free to find out.
        """
        if structure in self._known:
            self._known.move_to_end(structure)
            problem = self._known[structure]
        else:
            problem = await self._find(structure)
        if problem is not None:
            raise StructureError(problem)

    def close(self) -> None:
        """Validate nothing more. Nobody waits for threads that are at work."""
        self._threads.close()

    async def _find(self, structure: Structure) -> str | None:
        if structure not in self._running:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._free.acquire()
            except TimeoutError:
                raise BusyError("the server is busy with other schemas and grammars; try again") from None
            if structure in self._running:  # another request came first
                self._free.release()
            else:
                self._begin(structure)
        found = self._running[structure]
        done, _ = await asyncio.wait((found,), timeout=self._seconds)
        if done:
            return found.result()
        raise StructureError(
            f"validating took longer than the limit of {self._seconds:g} s; {limits.STEP_LIMIT_ADVICE}"
        )

    def _begin(self, structure: Structure) -> None:
        found = asyncio.wrap_future(self._threads.submit(_problem, structure))
        self._running[structure] = found
        found.add_done_callback(lambda found: self._end(structure, found))

    def _end(self, structure: Structure, found: asyncio.Future[str | None]) -> None:
        self._free.release()
        del self._running[structure]
        if not found.cancelled() and found.exception() is None:
            self._remember(structure, found.result())

    def _remember(self, structure: Structure, problem: str | None) -> None:
        if structure in self._known or len(structure.value) > _REMEMBERED_CHARACTERS // 8:
            return
        self._known[structure] = problem
        self._characters += len(structure.value)
        while len(self._known) > _REMEMBERED or self._characters > _REMEMBERED_CHARACTERS:
            oldest, _ = self._known.popitem(last=False)
            self._characters -= len(oldest.value)


def _problem(structure: Structure) -> str | None:
    try:
        validate(structure)
    except BaseException as error:
        return str(as_structure_error(error))
    return None


def _compile(grammar: str) -> None:
    """Raise :class:`StructureError` when llguidance cannot compile ``grammar`` or nothing can satisfy it."""
    matcher = llguidance.LLMatcher(_byte_vocabulary(), grammar, log_level=0, limits=limits.parser_limits())
    if matcher.is_error():
        raise StructureError(readable(matcher.get_error()))
    mask = np.zeros(mask_words(_BYTES + 1), np.int32)
    try:
        MatcherGrammar(matcher, frozenset({_BYTES})).fill(mask)
    except StructureError:
        raise StructureError(f"no answer can satisfy it; {limits.STEP_LIMIT_ADVICE}") from None
    if not mask[:-1].any():
        raise StructureError("only the empty answer satisfies it")


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
