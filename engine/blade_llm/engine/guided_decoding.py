"""Guided decoding in the engine: requests wait here while theirs is compiled, off the loop's thread, and
each step's token masks are filled here while the device computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Final

import numpy as np

from blade_llm.engine.guided_drafts import GuidedDrafts
from blade_llm.engine.restricted_grammar import restricted
from blade_llm.sampling.masks import TokenMasks, mask_words
from blade_llm.scheduling.grammar import Grammar, GrammarCompiler
from blade_llm.scheduling.guided import structure_error
from blade_llm.scheduling.output import RequestError, RequestOutput
from blade_llm.scheduling.plan import StepPlan
from blade_llm.scheduling.request import Request, RequestRefusedError, pixel_bytes
from blade_llm.scheduling.scheduler import Scheduler
from blade_llm.scheduling.step import GuidedChunk

WAIT_S: Final = 0.01
"""The longest that a step waits for a grammar when there is nothing else to do; a compiled one ends the wait."""
COMPILE_TIMEOUT_S: Final = 30.0
"""The longest that a request waits for its grammar, for a thread that compiles it included."""


@dataclass(slots=True)
class _Compiling:
    requests: list[Request]
    """The samples of one prompt that are still wanted."""
    grammar: Future[Grammar]
    until: float
    """Time of the clock at which the request times out."""


class GuidedDecodingManager:
    """The requests that wait for their grammars, and the masks of those that run.

    Args:
        grammars: compiles grammar specs; None: there is no compiler, and requests with a grammar spec are refused.
        vocab_size: tokens that the model's logits have; 0 where there are no grammars.
        clock: seconds; measures how long requests wait.
    """

    def __init__(
        self, scheduler: Scheduler, grammars: GrammarCompiler | None, vocab_size: int, clock: Callable[[], float]
    ) -> None:
        if grammars is not None and vocab_size < 1:
            raise ValueError("grammars need the size of the vocabulary")
        self._scheduler = scheduler
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._words = mask_words(vocab_size)
        self._masks = np.empty((0, self._words), dtype=np.int32)
        self._clock = clock
        self._compiling: list[_Compiling] = []

    @property
    def waiting(self) -> bool:
        """Whether a request waits for its grammar."""
        return bool(self._compiling)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their grammars."""
        return sum(len(each.requests) for each in self._compiling)

    @property
    def pixel_bytes(self) -> int:
        """Of the images of these."""
        return sum(pixel_bytes(each.requests) for each in self._compiling)

    def add(self, requests: list[Request]) -> None:
        """Compile the grammar spec that ``requests``, the samples of one prompt, share; they are scheduled when that is
        done.

        Raises :class:`RequestRefusedError` when there are no grammars, and when it is known at once that the spec is
        invalid. Errors of the spec name the field ``structure``.
        """
        spec = requests[0].sampling.grammar_spec
        assert spec is not None
        if self._grammars is None:
            raise _refused("this engine has no grammars for its model's tokenizer to guide answers with; leave it out")
        taken = {request.request_id for each in self._compiling for request in each.requests}
        if twice := [request.request_id for request in requests if request.request_id in taken]:
            raise RequestRefusedError(f"request id {twice[0]!r} is in use; choose another")
        for request in requests:
            self._scheduler.check(request)
        compiling = _Compiling(requests, self._grammars.compile(spec), self._clock() + COMPILE_TIMEOUT_S)
        if compiling.grammar.done():
            self._admit(compiling)
        else:
            self._compiling.append(compiling)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests that wait. Their grammar is compiled all the same: others may wait for it, the next
        request finds it, and its time is bounded."""
        gone = set(request_ids)
        for each in self._compiling:
            each.requests = [request for request in each.requests if request.request_id not in gone]
        self._compiling = [each for each in self._compiling if each.requests]

    def admit_compiled(self) -> list[RequestOutput]:
        """Schedule the requests whose grammars are compiled; the outputs of those whose grammars failed."""
        failed: list[RequestOutput] = []
        waiting: list[_Compiling] = []
        now = self._clock()
        for each in self._compiling:
            if not each.grammar.done():
                if now < each.until:
                    waiting.append(each)
                else:
                    failed += [_failed(request, _busy()) for request in each.requests]
                continue
            try:
                self._admit(each)
            except RequestRefusedError as error:  # of this spec, or of these requests: nobody else is at fault
                failed += [_failed(request, error.error) for request in each.requests]
        self._compiling = waiting
        return failed

    def wait(self) -> None:
        """Wait a moment for a grammar, as there is nothing else to do."""
        wait([each.grammar for each in self._compiling], WAIT_S, FIRST_COMPLETED)

    def drafts(self, plan: StepPlan) -> GuidedDrafts | None:
        """What a draft model may sample in a step that is to be launched; None: anything."""
        if not plan.draft_chunks:
            return None
        drafting = {chunk.slot for chunk in plan.chunks if chunk.num_draft_tokens}
        guided = self._scheduler.guided(plan)
        grammars = {each.request.slot: each.grammar for each in guided if each.request.slot in drafting}
        return GuidedDrafts(grammars, self._words) if grammars else None

    def masks(
        self, plan: StepPlan, drafts: Callable[[], Mapping[int, list[int]]] = dict
    ) -> tuple[TokenMasks | None, list[RequestOutput]]:
        """The tokens that the launched step may sample, and the outputs of requests whose grammar is broken.

        ``drafts``: the draft tokens of the step by slot; called where a request with a grammar has some.
        """
        guided = self._scheduler.guided(plan)
        if not guided:
            return None, []
        by_slot = drafts() if any(each.num_guesses for each in guided) else {}
        self._reserve(sum(1 + each.num_guesses for each in guided))
        rows: list[int] = []
        ended: list[RequestOutput] = []
        for each in guided:
            request, grammar = each.request, each.grammar
            mask = self._masks[len(rows)]
            try:
                grammar.fill(mask)
                if _can_go_on(request, mask):
                    rows.append(each.row)
                    if each.num_guesses:
                        rows += self._verified_rows(plan, each, by_slot[request.slot], len(rows))
                elif mask.any() or grammar.finished:
                    request.output_complete = True
                else:
                    ended.append(self._scheduler.end(request, structure_error(_nothing_left(request))))
            except ValueError as error:
                ended.append(self._scheduler.end(request, structure_error(str(error))))
        return (TokenMasks(rows, self._masks[: len(rows)]) if rows else None), ended

    def _verified_rows(self, plan: StepPlan, guided: GuidedChunk, drafts: list[int], filled: int) -> list[int]:
        """Fill the masks behind draft tokens, as far as the grammar allows those and goes on after them; the sampled
        positions that they are for. What is sampled further back is dropped.

        ``filled``: masks that are filled so far; the last is that of the position before the first draft token.
        """
        grammar, known = guided.grammar.copy(), len(guided.request.token_ids)
        rows: list[int] = []
        for index, token in enumerate(drafts):
            before = self._masks[filled + index - 1]
            if token in guided.request.stop_ids or not before[token // 32] >> (token % 32) & 1:
                break
            grammar.accept([token])
            if grammar.finished:
                break
            mask = self._masks[filled + index]
            grammar.fill(mask)
            if not _can_go_on(guided.request, mask, known + index + 1):
                break
            rows.append(guided.row + index + 1)
        self._scheduler.limit_sampled(plan, guided, 1 + len(rows))
        return rows

    def _reserve(self, rows: int) -> None:
        """Have memory for so many masks."""
        if len(self._masks) < rows:
            self._masks = np.empty((max(rows, self._scheduler.config.max_num_seqs), self._words), dtype=np.int32)

    def _admit(self, compiling: _Compiling) -> None:
        # One exception may be that of many requests: raised again, its traceback would keep all of them alive.
        error = compiling.grammar.exception()
        if error is not None:
            known = isinstance(error, ValueError)
            raise _refused(f"{error if known else f'it could not be compiled: {error!r}'}")
        grammar = compiling.grammar.result()
        for index, request in enumerate(compiling.requests):
            own = grammar.copy() if index else grammar
            request.grammar = restricted(own, request.sampling, request.stop_ids, self._vocab_size)
        try:
            self._scheduler.add(*compiling.requests)
        except RequestRefusedError:
            raise
        except ValueError as error:  # of the tokens that every output begins with
            raise _refused(str(error)) from error


def _can_go_on(request: Request, mask: np.ndarray, known: int | None = None) -> bool:
    """Whether a token is left, also after ``min_tokens`` has masked those that would end the output. ``known``: tokens
    before it, all that are known when not given."""
    known = len(request.token_ids) if known is None else known
    if known - request.num_prompt_tokens >= request.sampling.min_tokens:
        return bool(mask.any())
    bits = mask.view(np.uint32).copy()
    for token in request.stop_ids:
        if token // 32 < len(bits):
            bits[token // 32] &= ~np.uint32(1 << (token % 32))
    return bool(bits.any())


def _nothing_left(request: Request) -> str:
    """Why no token can come, though the output is not complete."""
    sampling = request.sampling
    if sampling.allowed_token_ids is None and not sampling.bad_words_token_ids:
        return "the grammar allows no token here"
    field = "bad_words" if sampling.allowed_token_ids is None else "allowed_token_ids"
    return f"of the tokens that the grammar allows here, {field} leaves none; allow more tokens"


def _refused(message: str) -> RequestRefusedError:
    return RequestRefusedError(structure_error(message))


def _busy() -> RequestError:
    occupied = f"threads were occupied by other schemas and grammars for {COMPILE_TIMEOUT_S:g} s"
    return RequestError(kind="overloaded", message=f"busy: {occupied}; try again in a moment")


def _failed(request: Request, error: RequestError) -> RequestOutput:
    return RequestOutput(request_id=request.request_id, finish_reason="abort", error=error)
