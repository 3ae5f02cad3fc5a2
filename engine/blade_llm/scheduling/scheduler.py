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

from blade_llm.cache.manager import KVCacheManager
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.scheduling.answers import accept, collect_prompt_logprobs, embedded, register
from blade_llm.scheduling.beam_rows import BeamRows
from blade_llm.scheduling.beams import BeamSearch
from blade_llm.scheduling.budget import PrefillBudget
from blade_llm.scheduling.grammar import Grammar
from blade_llm.scheduling.guided import begin, resume
from blade_llm.scheduling.limits import SchedulerConfig, check_beams, check_output, max_total_tokens
from blade_llm.scheduling.output import RequestOutput
from blade_llm.scheduling.plan import ScheduledRow, StepPlan, StepResult
from blade_llm.scheduling.request import NO_ROW, Request, RequestRefusedError, Status
from blade_llm.scheduling.residents import Residents
from blade_llm.scheduling.rows import new_row
from blade_llm.scheduling.shares import share_jump, share_prefill
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
            RequestRefusedError: it could never run: no prompt, too long for the model or for the whole KV cache, its
                id is in use, or it comes with an answer that cannot go on.
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
        if request.output_token_ids:
            check_output(request)
            request.closing = request.output_token_ids[-1] in request.stop_ids

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
                    share_prefill(step, request, residents)
            if may_admit:
                self._admit(step)
        if not step.rows:
            return None
        if step.prefill_tokens or self.config.max_drafts:
            step.order()
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
        residents = self._residents
        running, grow = residents.running, residents.grow
        wait_for_token = self.config.pipeline_stages > 1
        tokens_left = step.tokens_left
        if wait_for_token:  # share the rows among the steps in flight
            tokens_left = min(tokens_left, -(-len(running) // self.config.pipeline_stages) * (1 + most_drafts))
        for request in running:  # preemption removes from its end
            if not request.decoding:
                if request.jumping:
                    tokens_left -= share_jump(step, request, residents, tokens_left)
                elif request.beams is not None and request.beams.branches:
                    tokens_left = max(0, tokens_left - self._schedule_beams(step, request))
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

    def _schedule_beams(self, step: Step, request: Request) -> int:
        """Compute the next beams of a search, all or none; returns how many there are."""
        beams, residents = request.beams, self._residents
        assert beams is not None
        count = len(beams.branches)
        tokens_left = step.tokens_left - sum(row.count for row in step.rows)
        if count > tokens_left or not beams.schedule(step, request, self.cache, residents.take, residents.freed_rows):
            return 0
        return count

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
            step.new_rows.append(new_row(request))
            share_prefill(step, request, residents)

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
            collect_prompt_logprobs(step, result)
        outputs: list[RequestOutput] = []
        draws = zip(result.tokens, result.logprobs, strict=True)
        cache, finished = self.cache, Status.FINISHED
        for share, request in zip(step.rows, step.requests, strict=True):
            request.steps_in_flight -= 1
            if not share.sample:
                if request.row != NO_ROW:
                    register(request, share.start + share.count, cache)
                continue
            tokens, logprobs = next(draws)
            if request.status is finished:
                continue
            request.num_in_flight -= 1 + share.drafts
            if request.beams is not None:
                outputs += self._search(request, request.beams, tokens, logprobs)
            elif tokens:
                output = accept(request, tokens, logprobs, cache)
                self._generation_tokens += len(output.token_ids) + (output.stop_token_id is not None)
                if output.finish_reason is not None:
                    self._finish(request)
                outputs.append(output)
            else:  # a guess was wrong, and nothing came
                resume(request)
        for index, embedding in result.embeddings.items():
            request = step.requests[index]
            if request.status is not finished:
                self._finish(request)
                outputs.append(embedded(request, embedding))
        return outputs

    def _search(
        self, request: Request, beams: BeamRows, tokens: list[int], logprobs: list[TokenLogprobs] | None
    ) -> list[RequestOutput]:
        """One row of a beam search brought its offers; the answers when the search is over."""
        if request.row == NO_ROW:  # preempted: it starts again
            return []
        assert logprobs is not None
        if not beams.lanes:
            register(request, request.num_prompt_tokens, self.cache)
        beams.collect(tokens[0], logprobs[0])
        if request.num_in_flight or beams.advance(request):
            return []
        outputs = beams.answers(request)
        self._generation_tokens += sum(len(output.token_ids) for output in outputs)
        self._finish(request)
        return outputs

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

    def _finish(self, request: Request) -> None:
        self._residents.leave(request)
        if request.grammar is not None:
            self._num_guided -= 1
        if request.beams is None:
            del self._requests[request.request_id]
        else:
            for request_id in request.beams.answer_ids:
                if request_id is not None:
                    del self._requests[request_id]
