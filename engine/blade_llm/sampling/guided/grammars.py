"""Compiled structures: made off the step loop, kept for the next request, copied for each answer.

A structure takes about a millisecond to compile; the first one of a server may have to wait for the vocabulary. Both
happen in threads (llguidance releases the GIL). What has failed is kept too, so that a bad structure costs once, but
not what took too long: the machine may have been busy.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final

import llguidance
import numpy as np

from blade_llm.sampling.guided.checks import check_text
from blade_llm.sampling.guided.errors import StructureError, as_structure_error, readable
from blade_llm.sampling.guided.limits import COMPILE_SECONDS, STEP_LIMIT_ADVICE, parser_limits
from blade_llm.sampling.guided.matcher import MatcherGrammar
from blade_llm.sampling.guided.text import grammar_text
from blade_llm.sampling.guided.threads import DaemonThreads
from blade_llm.sampling.masks import mask_words
from blade_llm.sampling.structure import Structure

_THREADS: Final = 2
_MOST_STRUCTURES: Final = 32
"""Few: a lexer grows with its answers up to the limit of its states, and nothing tells its size."""
_MOST_CHARACTERS: Final = 8 * 2**20
WARM_UP: Final = Structure("json", '{"type": "object", "properties": {"answer": {"type": "string"}}}')


class GuidedGrammars:
    """The scheduler's ``Grammars``. :meth:`start` never blocks.

    Args:
        load: makes the vocabulary; called once, in a thread. Its :class:`StructureError` is every request's.
        vocab_size: width of the masks in tokens.
        seconds: nobody waits longer for a compilation.
    """

    def __init__(
        self, load: Callable[[], llguidance.LLTokenizer], vocab_size: int, *, seconds: float = COMPILE_SECONDS
    ) -> None:
        self._words = mask_words(vocab_size)
        self._seconds = seconds
        self._load = load
        self._threads = DaemonThreads(_THREADS, "grammar")
        self._lock = threading.Lock()
        self._vocabulary: Future[llguidance.LLTokenizer] | None = None
        self._compiled: OrderedDict[Structure, Future[MatcherGrammar]] = OrderedDict()
        """Least recently used first; a failed one holds its error."""
        self._characters = 0

    def start(self, structure: Structure) -> Future[Any]:
        """A fresh :class:`MatcherGrammar` for one answer; done at once where the structure is known."""
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()

        def deliver(compiled: Future[MatcherGrammar]) -> None:
            if error := compiled.exception():
                answer.set_exception(error)
                return
            try:
                copied = compiled.result().copy()
            except Exception as error:
                answer.set_exception(as_structure_error(error))
            else:
                answer.set_result(copied)

        self._compile(structure).add_done_callback(deliver)
        return answer

    def warm_up(self) -> Future[Any]:
        """Build the vocabulary and compile a first schema, in the background."""
        return self.start(WARM_UP)

    def close(self) -> None:
        """Take no more structures; nobody waits for threads that are at work."""
        self._threads.close()

    def _compile(self, structure: Structure) -> Future[MatcherGrammar]:
        with self._lock:
            found = self._compiled.get(structure)
            if found is not None and not _worn_out(found):
                self._compiled.move_to_end(structure)
                return found
            if found is not None:
                self._drop(structure)
            made: Future[MatcherGrammar] = Future()
            made.set_running_or_notify_cancel()
            self._compiled[structure] = made
            self._characters += len(structure.value)
            self._forget()
            if self._vocabulary is None:
                self._vocabulary = self._threads.submit(self._load)
            vocabulary = self._vocabulary
        # its thread must not wait for the vocabulary: with one thread for both that would be for ever
        vocabulary.add_done_callback(lambda ready: self._submit(structure, ready, made))
        return made

    def _submit(
        self, structure: Structure, vocabulary: Future[llguidance.LLTokenizer], made: Future[MatcherGrammar]
    ) -> None:
        try:
            self._threads.submit(self._run, structure, vocabulary, made)
        except RuntimeError:  # closed meanwhile
            made.set_exception(StructureError("the engine is stopping"))

    def _run(
        self, structure: Structure, vocabulary: Future[llguidance.LLTokenizer], made: Future[MatcherGrammar]
    ) -> None:
        late = threading.Timer(self._seconds, self._give_up, (structure, made))
        late.daemon = True
        late.start()
        try:
            failure = vocabulary.exception()  # everybody's: raised again, its traceback would grow with each structure
            fresh = StructureError(str(as_structure_error(failure))) if failure else None
            _settle(made, fresh or self._matcher(structure, vocabulary.result()))
        except BaseException as error:
            _settle(made, as_structure_error(error))
        finally:
            late.cancel()

    def _give_up(self, structure: Structure, made: Future[MatcherGrammar]) -> None:
        with self._lock:
            if not made.done() and self._compiled.get(structure) is made:
                del self._compiled[structure]
                self._characters -= len(structure.value)
        _settle(made, _too_slow(self._seconds))

    def _matcher(self, structure: Structure, vocabulary: llguidance.LLTokenizer) -> MatcherGrammar:
        check_text(structure)
        matcher = llguidance.LLMatcher(vocabulary, grammar_text(structure), log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise StructureError(readable(matcher.get_error()))
        grammar = MatcherGrammar(matcher, frozenset(vocabulary.eos_tokens))
        try:
            grammar.copy().fill(np.empty(self._words, np.int32))  # fills the lexer's caches, finds empty languages
        except StructureError:
            raise StructureError(f"no answer can satisfy it; {STEP_LIMIT_ADVICE}") from None
        return grammar

    def _forget(self) -> None:
        while len(self._compiled) > _MOST_STRUCTURES or (
            self._characters > _MOST_CHARACTERS and len(self._compiled) > 1
        ):
            worn = (structure for structure, compiled in self._compiled.items() if _worn_out(compiled))
            self._drop(next(worn, next(iter(self._compiled))))

    def _drop(self, structure: Structure) -> None:
        del self._compiled[structure]
        self._characters -= len(structure.value)


def _worn_out(compiled: Future[MatcherGrammar]) -> bool:
    """Whether it was usable and no longer is. What has failed stays as it is."""
    return compiled.done() and compiled.exception() is None and compiled.result().worn_out


def _settle(future: Future[MatcherGrammar], outcome: MatcherGrammar | Exception) -> None:
    """The first outcome counts: the result, or that it took too long."""
    try:
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    except InvalidStateError:
        pass


def _too_slow(seconds: float) -> StructureError:
    return StructureError(f"compiling took longer than the limit of {seconds:g} s; {STEP_LIMIT_ADVICE}")
