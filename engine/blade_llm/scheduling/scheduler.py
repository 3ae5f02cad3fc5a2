"""Decides what each step computes.

Every step has one token budget. Running decodes come first, then prefills in progress, then new requests, each in
order of (priority, arrival); there are no phases, and a prompt, a decode, a prompt-cache hit and a recomputation differ
only in how many tokens of a request are still to compute. Steps are scheduled before the tokens of the step before are
known: ``num_in_flight`` runs ahead by the most that launched draws can bring (:mod:`blade_llm.scheduling.plan` has the
agreement with the runner), and :meth:`Scheduler.update` catches up.

The scheduler is pure: its plans depend on the calls made to it, not on time or threads (measured step durations, where
the owner gives them, shape prefill chunks and nothing else).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from blade_llm.cache.manager import KVCacheManager
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.scheduling.beam_rows import BeamRows
from blade_llm.scheduling.beams import BeamSearch
from blade_llm.scheduling.budget import PrefillBudget
from blade_llm.scheduling.grammar import Grammar
from blade_llm.scheduling.guided import begin, follow
from blade_llm.scheduling.limits import SchedulerConfig, check_beams, max_total_tokens
from blade_llm.scheduling.output import RequestOutput
from blade_llm.scheduling.plan import (
    FinishReason,
    NewRow,
    ScheduledRow,
    StepPlan,
    StepResult,
    TokenUpdate,
)
from blade_llm.scheduling.request import NO_ROW, Request, RequestRefusedError, Status
from blade_llm.scheduling.residents import Residents
from blade_llm.scheduling.step import SchedulerStats, Step


class Scheduler:
    """Requests in, step plans out; step results in, outputs out."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager, budget: PrefillBudget | None = None) -> None:
        self.config = config
        self.cache = cache
        self.budget = budget or PrefillBudget()
        self._requests: dict[str, Request] = {}
        """By every id that their outputs bear."""
        self._residents = Residents(config, cache)
        self._launched: dict[int, Step] = {}
        self._num_steps = 0
        self._num_arrivals = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0
        self._num_guided = 0
        """Live requests with a grammar."""

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, request: Request) -> None:
        """Fill in what depends on the engine's limits.

        Raises:
            RequestRefusedError: it could never run: no prompt, too long for the model or for the whole KV cache, or
                its id is in use.
        """
        for request_id in request.answer_ids or (request.request_id,):
            if request_id in self._requests:
                raise RequestRefusedError(f"request id {request_id!r} is in use; choose another")
        request.max_total = max_total_tokens(request, self.config, self.cache)
        request.stop_ids = frozenset(request.sampling.stop_token_ids)
        if not request.sampling.ignore_eos:
            request.stop_ids |= frozenset(self.config.eos_token_ids)
        if request.sampling.beam_width:
            check_beams(request, request.max_total, self.config, self.cache)

    def add(self, *requests: Request) -> None:
        """Queue a new request; several: samples of one prompt, all or none.

        Raises:
            ValueError: see :meth:`check`; or its grammar contradicts itself.
        """
        for request in requests:
            self.check(request)
            if request.grammar is not None:
                begin(request, request.grammar)
        for request in requests:
            request.chain = self.cache.new_chain(request.cache_salt, request.adapter_digest, request.image_digest)
            request.arrival = self._num_arrivals
            self._num_arrivals += 1
            self._num_guided += request.grammar is not None
            if request.sampling.beam_width:
                search = BeamSearch(request.sampling, request.stop_ids, request.max_total - request.num_prompt_tokens)
                answer_ids = request.answer_ids or (request.request_id,)
                request.beams = BeamRows(search, list(answer_ids))
                self._requests.update(dict.fromkeys(answer_ids, request))
            else:
                self._requests[request.request_id] = request
        self._residents.add(list(requests))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget these requests, whatever they are doing; unknown ids are ignored. Rows and blocks are free at once."""
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is None:
                continue
            if request.beams is None:
                self._finish(request)
                continue
            del self._requests[request_id]
            if request.beams.unwanted(request_id):
                self._finish(request)

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._requests)

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            running=len(self._residents.running),
            waiting=len(self._residents.waiting),
            kv_blocks_total=self.cache.num_blocks,
            kv_blocks_free=self.cache.num_free,
            prompt_tokens_total=self._prompt_tokens,
            cached_tokens_total=self._cached_tokens,
            generation_tokens_total=self._generation_tokens,
            preemptions_total=self._residents.preemptions,
        )

    # ── the next step ───────────────────────────────────────────────────────────────────────────────────────────────

    def schedule(self) -> StepPlan | None:
        """The next step, or None when there is nothing to compute now (all done, or waiting for results)."""
        step = Step(self._num_steps, self.config.max_batch_tokens)
        residents = self._residents
        waiting, free_rows = residents.waiting, residents.free_rows
        preemptions = residents.preemptions
        prefills = self._schedule_decodes(step)
        may_admit = bool(waiting and free_rows and residents.preemptions == preemptions)
        if step.tokens_left and (prefills or may_admit):
            num_prefills = len(prefills) + (min(len(waiting), len(free_rows)) if may_admit else 0)
            allowance = self.budget.allowance(step.num_decodes, num_prefills)
            if allowance is not None:
                step.tokens_left = min(step.tokens_left, allowance)
            for request in prefills:
                if step.tokens_left and request.status is Status.RUNNING:
                    self._schedule_prefill(step, request)
            if may_admit:
                self._admit(step)
        if not step.rows:
            return None
        plan = step.plan(residents.freed_rows)
        self._launched[self._num_steps] = step
        self._num_steps += 1
        residents.freed_rows = []
        return plan

    def _schedule_decodes(self, step: Step) -> list[Request]:
        """Schedule every running request that is past its prefill; return those that are not."""
        prefills = []
        rows, requests = step.rows, step.requests
        block_size, most_drafts = self.cache.block_size, self.config.max_drafts
        running, grow = self._residents.running, self._residents.grow
        wait_for_token = self.config.pipeline_stages > 1
        tokens_left = step.tokens_left
        if wait_for_token:  # share the rows among the steps in flight
            tokens_left = min(tokens_left, -(-len(running) // self.config.pipeline_stages) * (1 + most_drafts))
        for request in running:  # preemption removes from its end
            if not request.decoding:
                if request.jumping:
                    tokens_left -= self._schedule_jump(step, request, tokens_left)
                elif request.beams is not None and request.beams.branches:
                    tokens_left -= self._schedule_beams(step, request, tokens_left)
                elif request.num_computed < request.prefill_end:
                    prefills.append(request)
                continue
            if not tokens_left:
                continue
            total = len(request.token_ids) + request.num_in_flight
            room = request.max_total - total
            if room <= 0 or (wait_for_token and request.num_in_flight):  # its last token may be in flight
                continue
            drafts = min(most_drafts, room - 1, tokens_left - 1) if most_drafts and request.grammar is None else 0
            if total + drafts > len(request.block_table) * block_size and not grow(step, request, total + drafts):
                continue
            rows.append(ScheduledRow(request.row, total - 1, 1 + drafts, True, request.request_id, drafts))
            requests.append(request)
            request.num_in_flight += 1 + drafts
            request.steps_in_flight += 1
            tokens_left -= 1 + drafts
        step.num_decodes = len(rows)
        step.tokens_left -= sum(row.count for row in rows) if most_drafts else len(rows) + step.prefill_tokens
        return prefills

    def _schedule_jump(self, step: Step, request: Request, tokens_left: int) -> int:
        """Compute the last token drawn and those forced after it, then draw; returns how many tokens that takes.

        What does not fit into the step is left as a prefill.
        """
        start, end = request.num_computed, request.prefill_end
        if not tokens_left:
            return 0
        if self.cache.blocks_for(end) > len(request.block_table) and not self._residents.grow(step, request, end):
            return 0
        step.token_updates.append(TokenUpdate(request.row, start + 1, request.token_ids[start + 1 : end]))
        request.jumping = False
        count = min(end - start, tokens_left)
        self._take_share(step, request, count)
        step.prefill_tokens += count - 1
        return count

    def _schedule_beams(self, step: Step, request: Request, tokens_left: int) -> int:
        """Compute the next beams of a search, all or none; returns how many there are."""
        beams, residents = request.beams, self._residents
        assert beams is not None
        count = len(beams.branches)
        if count > tokens_left or not beams.schedule(step, request, self.cache, residents.take, residents.freed_rows):
            return 0
        return count

    def _schedule_prefill(self, step: Step, request: Request) -> None:
        """Give a request with a row as much of the step as it can use."""
        count = min(request.prefill_end - request.num_computed, step.tokens_left)
        self._take_share(step, request, count)
        step.tokens_left -= count
        step.prefill_tokens += count

    def _take_share(self, step: Step, request: Request, count: int) -> None:
        """Compute ``count`` known positions; draw after the last of them, unless only its state is wanted."""
        start = request.num_computed
        last = start + count == request.prefill_end
        sample = last and not request.pooling
        step.rows.append(ScheduledRow(request.row, start, count, sample, request.request_id))
        step.requests.append(request)
        request.num_computed = start + count
        request.decoding = sample and request.beams is None
        request.num_in_flight += sample
        request.steps_in_flight += 1
        self._residents.launched(request, step.number)

    def _admit(self, step: Step) -> None:
        """Let waiting requests in, in order, while tokens, rows and blocks last."""
        residents, index = self._residents, 0
        waiting = residents.waiting
        while step.tokens_left and index < len(waiting) and residents.free_rows:
            request = waiting[index]
            if not residents.may_enter(request, step.number):
                index += 1
                continue
            entry = residents.entry(request, step.number)
            if entry is None:
                return
            residents.enter(step, request, entry)
            group = request.group
            if request.cached_tokens is None and not (group is not None and group.counted):
                # What a grammar leaves no choice about may already stand behind the prompt, and be cached with it.
                request.cached_tokens = min(request.num_computed, request.num_prompt_tokens)
                self._prompt_tokens += request.num_prompt_tokens
                self._cached_tokens += request.cached_tokens
                if group is not None:
                    group.counted = True
            step.new_rows.append(self._new_row(request))
            self._schedule_prefill(step, request)

    def _new_row(self, request: Request) -> NewRow:
        sampling, beams = request.sampling, request.beams
        if beams is not None:
            asked = sampling.prompt_logprobs
            sampling = msgspec.structs.replace(beams.search.row_sampling, prompt_logprobs=asked)
        return NewRow(
            row=request.row,
            request_id=request.request_id,
            token_ids=list(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            sampling=sampling,
            sample_index=request.sample_index,
            masked_until_min_tokens=tuple(sorted(request.stop_ids)) if sampling.min_tokens else (),
            adapter_slot=request.adapter_slot,
            embeddings=request.embeddings,
            pooling=request.pooling,
        )

    # ── its result ──────────────────────────────────────────────────────────────────────────────────────────────────

    def update(self, plan: StepPlan, result: StepResult, seconds: float | None = None) -> list[RequestOutput]:
        """Take in what a launched step drew. Call it once for each plan, in order.

        Blocks enter the prompt cache here and not at launch: now their KV exists and their tokens are known.

        Args:
            seconds: how long the device worked on the step, for the prefill budget.
        """
        step = self._launched.pop(plan.step)
        if seconds is not None:
            self.budget.observe(step.num_decodes, step.prefill_tokens, seconds)
        if result.prompt_logprobs:
            _collect_prompt_logprobs(step, result)
        outputs: list[RequestOutput] = []
        draws = zip(result.tokens, result.logprobs, strict=True)
        finished = Status.FINISHED
        for share, request in zip(step.rows, step.requests, strict=True):
            request.steps_in_flight -= 1
            if not share.sample:
                if request.row != NO_ROW:
                    self._register(request, share.start + share.count)
                continue
            tokens, logprobs = next(draws)
            if request.status is finished:
                continue
            request.num_in_flight -= 1 + share.drafts
            if request.beams is not None:
                outputs += self._search(request, request.beams, tokens, logprobs)
            elif tokens:
                outputs.append(self._accept(request, tokens, logprobs))
        for index, embedding in result.embeddings.items():
            if step.requests[index].status is not finished:
                outputs.append(self._embedded(step.requests[index], embedding))
        return outputs

    def _accept(self, request: Request, tokens: list[int], logprobs: list[TokenLogprobs] | None) -> RequestOutput:
        """Append drawn tokens up to the first that ends the request."""
        known = request.token_ids
        length = len(known)
        kept = 0
        reason: FinishReason | None = None
        stop_token_id: int | None = None
        for token in tokens:
            known.append(token)
            if token in request.stop_ids:
                reason, stop_token_id = "stop", token
                break
            kept += 1
            if length + kept >= request.max_total:
                reason = "length"
                break
        if reason is not None:
            tokens = tokens[:kept]
            logprobs = logprobs[:kept] if logprobs is not None else None
        if request.row != NO_ROW:
            self._register(request, len(known) - 1)
        error: str | None = None
        if request.grammar is not None:
            tokens, reason, stop_token_id, error = follow(request, request.grammar, tokens, reason, stop_token_id)
        self._generation_tokens += len(tokens) + (stop_token_id is not None)
        if reason is not None:
            self._finish(request)
        first = not request.answered
        request.answered = True
        return RequestOutput(
            request_id=request.request_id,
            token_ids=tokens,
            logprobs=logprobs,
            finish_reason=reason,
            stop_token_id=stop_token_id,
            cached_tokens=request.cached_tokens if first else None,
            prompt_logprobs=request.prompt_logprobs if first else None,
            error=error,
        )

    def _search(
        self, request: Request, beams: BeamRows, tokens: list[int], logprobs: list[TokenLogprobs] | None
    ) -> list[RequestOutput]:
        """One row of a beam search brought its offers; the answers when the search is over."""
        if request.row == NO_ROW:  # preempted: it starts again
            return []
        assert logprobs is not None
        if not beams.lanes:
            self._register(request, request.num_prompt_tokens)
        beams.collect(tokens[0], logprobs[0])
        if request.num_in_flight or beams.advance(request):
            return []
        outputs = beams.answers(request)
        self._generation_tokens += sum(len(output.token_ids) for output in outputs)
        self._finish(request)
        return outputs

    def _embedded(self, request: Request, embedding: bytes) -> RequestOutput:
        self._finish(request)
        return RequestOutput(
            request_id=request.request_id,
            finish_reason="stop",
            cached_tokens=request.cached_tokens,
            prompt_logprobs=request.prompt_logprobs,
            embedding=embedding,
        )

    def guided(self, plan: StepPlan) -> list[tuple[int, Request, Grammar]]:
        """The drawing rows of a launched plan whose request has a grammar and goes on: which of the drawing rows, the
        request, the grammar."""
        if not self._num_guided:
            return []
        drawing = [
            request
            for share, request in zip(plan.rows, self._launched[plan.step].requests, strict=True)
            if share.sample
        ]
        return [
            (index, request, request.grammar)
            for index, request in enumerate(drawing)
            if request.grammar is not None and request.status is not Status.FINISHED
        ]

    def end(self, request: Request, error: str) -> RequestOutput:
        """End a live request because of an error that is its own."""
        self._finish(request)
        return RequestOutput(request_id=request.request_id, finish_reason="abort", error=error)

    def _register(self, request: Request, num_computed: int) -> None:
        """Name the blocks that the first ``num_computed`` positions fill."""
        full = num_computed // self.cache.block_size
        if full > request.num_registered:
            self.cache.register(request.chain, request.token_ids, request.block_table, request.num_registered, full)
            request.num_registered = full

    def _finish(self, request: Request) -> None:
        self._residents.leave(request)
        if request.grammar is not None:
            self._num_guided -= 1
        if request.beams is None:
            del self._requests[request.request_id]
        else:
            for request_id in request.beams.answer_ids:
                self._requests.pop(request_id or "", None)


def _collect_prompt_logprobs(step: Step, result: StepResult) -> None:
    """Keep each position's once: after a preemption some are computed again."""
    for index, pieces in result.prompt_logprobs.items():
        collected = step.requests[index].prompt_logprobs
        if collected is not None:
            collected += pieces[max(0, len(collected) - 1 - step.rows[index].start) :]
