"""The compiler and cache of grammars: they are compiled off the step loop, cached for the next request, and copied for
each output.

A grammar spec takes about a millisecond to compile; the first one of a server may have to wait for the vocabulary. Both
happen in threads (llguidance releases the GIL). Failures are cached too, so that a bad spec costs once, but not
time-outs: the machine may have been busy.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final

import llguidance
import numpy as np

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.checks import check_text
from blade_llm.sampling.guided.errors import GrammarSpecError, as_grammar_spec_error, readable
from blade_llm.sampling.guided.limits import COMPILE_SECONDS, STEP_LIMIT_ADVICE, parser_limits
from blade_llm.sampling.guided.matcher import MatcherGrammar
from blade_llm.sampling.guided.text import grammar_text
from blade_llm.sampling.guided.threads import DaemonThreads
from blade_llm.sampling.masks import mask_words

_THREADS: Final = 2
_MAX_GRAMMARS: Final = 32
"""Few: a lexer grows with its outputs up to the limit of its states, and its size cannot be read."""
_MAX_CHARACTERS: Final = 8 * 2**20
WARM_UP: Final = GrammarSpec("json", '{"type": "object", "properties": {"answer": {"type": "string"}}}')


class CachingGrammarCompiler:
    """The scheduler's ``GrammarCompiler``. :meth:`compile` never blocks.

    Args:
        load: builds the vocabulary; called once, in a thread. Its :class:`GrammarSpecError` is every request's.
        vocab_size: width of the masks in tokens.
        seconds: time limit of a compilation.
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
        self._compiled: OrderedDict[GrammarSpec, Future[MatcherGrammar]] = OrderedDict()
        """Least recently used first; a failed one holds its error."""
        self._characters = 0

    def compile(self, spec: GrammarSpec) -> Future[Any]:
        """A fresh :class:`MatcherGrammar` for one output; done at once where the grammar is cached."""
        copy: Future[Any] = Future()
        copy.set_running_or_notify_cancel()

        def deliver(compiled: Future[MatcherGrammar]) -> None:
            if error := compiled.exception():
                copy.set_exception(error)
                return
            try:
                copied = compiled.result().copy()
            except Exception as error:
                copy.set_exception(as_grammar_spec_error(error))
            else:
                copy.set_result(copied)

        self._compile(spec).add_done_callback(deliver)
        return copy

    def warm_up(self) -> Future[Any]:
        """Build the vocabulary and compile a first schema, in the background."""
        return self.compile(WARM_UP)

    def close(self) -> None:
        """Compile nothing more; threads that are at work are not waited for."""
        self._threads.close()

    def _compile(self, spec: GrammarSpec) -> Future[MatcherGrammar]:
        with self._lock:
            found = self._compiled.get(spec)
            if found is not None and not _exhausted(found):
                self._compiled.move_to_end(spec)
                return found
            if found is not None:
                self._drop(spec)
            made: Future[MatcherGrammar] = Future()
            made.set_running_or_notify_cancel()
            self._compiled[spec] = made
            self._characters += len(spec.value)
            self._evict()
            if self._vocabulary is None:
                self._vocabulary = self._threads.submit(self._load)
            vocabulary = self._vocabulary
        # its thread must not wait for the vocabulary: with one thread for both that would be for ever
        vocabulary.add_done_callback(lambda ready: self._submit(spec, ready, made))
        return made

    def _submit(
        self, spec: GrammarSpec, vocabulary: Future[llguidance.LLTokenizer], made: Future[MatcherGrammar]
    ) -> None:
        try:
            self._threads.submit(self._run, spec, vocabulary, made)
        except RuntimeError:  # closed meanwhile
            made.set_exception(GrammarSpecError("the engine is stopping"))

    def _run(self, spec: GrammarSpec, vocabulary: Future[llguidance.LLTokenizer], made: Future[MatcherGrammar]) -> None:
        late = threading.Timer(self._seconds, self._give_up, (spec, made))
        late.daemon = True
        late.start()
        try:
            failure = vocabulary.exception()  # everybody's: raised again, its traceback would grow with each request
            fresh = GrammarSpecError(str(as_grammar_spec_error(failure))) if failure else None
            _settle(made, fresh or self._matcher(spec, vocabulary.result()))
        except BaseException as error:
            _settle(made, as_grammar_spec_error(error))
        finally:
            late.cancel()

    def _give_up(self, spec: GrammarSpec, made: Future[MatcherGrammar]) -> None:
        with self._lock:
            if not made.done() and self._compiled.get(spec) is made:
                del self._compiled[spec]
                self._characters -= len(spec.value)
        _settle(made, _too_slow(self._seconds))

    def _matcher(self, spec: GrammarSpec, vocabulary: llguidance.LLTokenizer) -> MatcherGrammar:
        check_text(spec)
        matcher = llguidance.LLMatcher(vocabulary, grammar_text(spec), log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise GrammarSpecError(readable(matcher.get_error()))
        grammar = MatcherGrammar(matcher, frozenset(vocabulary.eos_tokens))
        try:
            grammar.copy().fill(np.empty(self._words, np.int32))  # fills the lexer's caches, finds empty languages
        except GrammarSpecError:
            raise GrammarSpecError(f"no answer can satisfy it; {STEP_LIMIT_ADVICE}") from None
        return grammar

    def _evict(self) -> None:
        while len(self._compiled) > _MAX_GRAMMARS or (self._characters > _MAX_CHARACTERS and len(self._compiled) > 1):
            exhausted = (spec for spec, compiled in self._compiled.items() if _exhausted(compiled))
            self._drop(next(exhausted, next(iter(self._compiled))))

    def _drop(self, spec: GrammarSpec) -> None:
        del self._compiled[spec]
        self._characters -= len(spec.value)


def _exhausted(compiled: Future[MatcherGrammar]) -> bool:
    """Whether it was usable and no longer is. Failures stay cached."""
    return compiled.done() and compiled.exception() is None and compiled.result().exhausted


def _settle(future: Future[MatcherGrammar], outcome: MatcherGrammar | Exception) -> None:
    """The first outcome counts: the result, or that it took too long."""
    try:
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    except InvalidStateError:
        pass


def _too_slow(seconds: float) -> GrammarSpecError:
    return GrammarSpecError(f"compiling took longer than the limit of {seconds:g} s; {STEP_LIMIT_ADVICE}")
