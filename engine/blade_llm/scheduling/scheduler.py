"""Decides what each step computes.

Every step has one token budget. Running decodes come first, then prefills in progress, then new requests, each in
order of (priority, arrival): continuous batching with chunked prefill. A step mixes all of them, and a prompt, a
decode, a prefix-cache hit and a recomputation differ only in how many tokens of a request are still to compute. Steps
are scheduled before the tokens of the step before are known: ``num_in_flight`` runs ahead by the most that launched
steps can sample (:mod:`blade_llm.scheduling.plan` has the agreement with the runner), and :meth:`Scheduler.update`
catches up.

The scheduler is pure: its plans depend on the calls made to it, not on time or threads (measured step durations, where
the owner gives them, shape prefill chunks and nothing else).
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from blade_llm.cache.adapters import AdapterResidency
from blade_llm.cache.manager import KVCacheManager
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.scheduling.accepted import AcceptedTokens
from blade_llm.scheduling.admission import AdmissionControl, AdmissionPolicy, WholePrompts
from blade_llm.scheduling.beams.group import BeamGroup
from blade_llm.scheduling.beams.search import BeamSearch
from blade_llm.scheduling.budget.pipeline import decode_share, prefill_share
from blade_llm.scheduling.budget.prefill import PrefillBudget
from blade_llm.scheduling.chunks import schedule_forced_tokens
from blade_llm.scheduling.drafting import Drafter, add_drafts, step_tokens
from blade_llm.scheduling.guided import append_initial_forced_tokens, resume_decoding
from blade_llm.scheduling.images.encoding import ImageEncoding
from blade_llm.scheduling.limits import SchedulerConfig, check_beams, check_output, max_total_tokens
from blade_llm.scheduling.output import RequestError, RequestOutput
from blade_llm.scheduling.phase import Phase
from blade_llm.scheduling.plan import ScheduledChunk, StepPlan, StepResult, TreeResult
from blade_llm.scheduling.request import NO_SLOT, Request, RequestRefusedError
from blade_llm.scheduling.request_sets import RequestSets
from blade_llm.scheduling.results import (
    append_sampled,
    collect_prompt_logprobs,
    exhausted,
    invalid_outputs,
    is_launched,
    pooled_output,
    register_blocks,
)
from blade_llm.scheduling.step import GuidedChunk, SchedulerStats, Step, new_request


class Scheduler:
    """Requests in, step plans out; step results in, outputs out."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCacheManager,
        budget: PrefillBudget | None = None,
        policy: AdmissionPolicy | None = None,
        drafter: Drafter | None = None,
        images: ImageEncoding | None = None,
    ) -> None:
        """``drafter``: proposes draft tokens; None: decodes get none. ``images``: of a model that takes some."""
        self.config = config
        self._drafter = drafter
        self.cache = cache
        self.budget = budget or PrefillBudget()
        self._requests: dict[str, Request] = {}
        """By every id that their outputs bear."""
        self.images = images
        self._sets = RequestSets(config, cache, images)
        self._admission: AdmissionControl | WholePrompts
        if config.whole_prompts:
            self._admission = WholePrompts(self._sets)
        else:
            self._admission = AdmissionControl(self._sets, policy or AdmissionPolicy())
        self._launched: dict[int, Step] = {}
        self._accepted = AcceptedTokens()
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
                id is in use, or it comes with an output that cannot go on.
        """
        for request_id in request.output_ids or (request.request_id,):
            if request_id in self._requests:
                raise RequestRefusedError(f"request id {request_id!r} is in use; choose another")
        request.max_total = max_total_tokens(request, self.config, self.cache)
        request.stop_ids = frozenset(request.sampling.stop_token_ids)
        if not request.sampling.ignore_eos:
            request.stop_ids |= frozenset(self.config.eos_token_ids)
        if request.sampling.beam_width:
            check_beams(request, request.max_total, self.config, self.cache)
        if request.images:
            self._sets.check_images(request)
        if request.output_token_ids:
            check_output(request)
            request.output_complete = request.output_token_ids[-1] in request.stop_ids

    def add(self, *requests: Request) -> None:
        """Queue a new request; several: samples of one prompt, all or none.

        Raises:
            ValueError: see :meth:`check`; or its grammar contradicts itself.
        """
        for request in requests:
            self.check(request)
            if request.grammar is not None:
                append_initial_forced_tokens(request, request.grammar)
        for request in requests:
            request.chain = self.cache.new_chain(request.cache_salt, request.adapter_digest, request.images)
            request.arrival = self._num_arrivals
            self._num_arrivals += 1
            self._num_guided += request.grammar is not None
            if request.is_beam_search:
                search = BeamSearch(request.sampling, request.stop_ids, request.max_total - request.num_prompt_tokens)
                output_ids = request.output_ids or (request.request_id,)
                self._sets.beam_groups[request] = BeamGroup(search, list(output_ids))
                self._requests.update(dict.fromkeys(output_ids, request))
            else:
                self._requests[request.request_id] = request
        self._sets.add(list(requests))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget these requests, whatever their phase; unknown ids are ignored. Slots and blocks are free at once."""
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is None:
                continue
            if not request.is_beam_search:
                self._finish(request)
                continue
            del self._requests[request_id]
            if self._sets.beam_groups[request].drop_output(request_id):
                self._finish(request)

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished, or the runner still keeps images that nobody needs."""
        return bool(self._requests) or (self.images is not None and bool(self.images.cache.freed))

    @property
    def adapters(self) -> AdapterResidency:
        """The adapters on the device."""
        return self._sets.adapters

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            running=len(self._sets.running),
            waiting=len(self._sets.waiting),
            kv_blocks_total=self.cache.num_blocks,
            kv_blocks_free=self.cache.num_free,
            prompt_tokens_total=self._prompt_tokens,
            cached_tokens_total=self._cached_tokens,
            generation_tokens_total=self._generation_tokens,
            preemptions_total=self._sets.preemptions,
        )

    # ── the next step ───────────────────────────────────────────────────────────────────────────────────────────────

    def schedule(self) -> StepPlan | None:
        """The next step, or None when there is nothing to compute now (all done, or waiting for results)."""
        step = Step(self._num_steps, self.config.max_batch_tokens)
        sets = self._sets
        waiting, free_slots, preemptions = sets.waiting, sets.free_slots, sets.preemptions
        drafter = self._drafter
        if drafter is not None and not drafter.active(len(sets.running)):
            drafter = None
        if drafter is not None and self._launched and self.config.pipeline_stages == 1:
            return None  # decodes in flight would miss this step: the batch would fall into parts that take turns
        prefills = self._schedule_decodes(step, wait_for_tokens=drafter is not None)
        may_admit = bool(waiting and free_slots and sets.preemptions == preemptions)
        images = self.images if self.images is not None and self.images.active else None
        if images is not None:
            prefills = [request for request in prefills if request.num_computable]
            images.schedule(step, self.budget.cost.usual_decode, prefill_waits=bool(prefills or may_admit))
        if step.tokens_left and (prefills or may_admit) and not step.encoder:
            crowd = len(prefills) + (min(len(waiting), len(free_slots)) if may_admit else 0)
            crowd = crowd if images is None else 1  # nobody is to wait longer for others' images
            allowance = self.budget.allowance(step.num_decodes, crowd, forced=step.prefill_tokens)
            if allowance is not None and not self.config.whole_prompts:
                step.tokens_left = min(step.tokens_left, allowance)
            if self.config.pipeline_stages > 1 and not self.config.whole_prompts:
                step.tokens_left = min(step.tokens_left, self._prefill_share(prefills, may_admit))
            if step.tokens_left:
                for request in self._admission.schedule(step, prefills, may_admit):
                    self._admitted(step, request)
            if self.images is not None and not step.prefill_tokens and allowance != 0:
                self.images.schedule(step, self.budget.cost.usual_decode, prefill_waits=False)
        if not (step.chunks or step.encoder or step.new_requests or step.freed_images):
            return None
        if drafter is not None:
            add_drafts(step, drafter, sets, self.config)
        if step.prefill_tokens or drafter is not None:
            step.sort_chunks()
        self._accepted.move_to(step)
        plan = step.plan(sets.freed_slots, self.config.pipeline_stages, sets.adapters.take_updates())
        self._launched[self._num_steps] = step
        self._num_steps += 1
        sets.freed_slots = []
        return plan

    def _schedule_decodes(self, step: Step, wait_for_tokens: bool) -> list[Request]:
        """Schedule every running request that is past its prefill; return those that are not.

        ``wait_for_tokens``: only those whose last token is known.
        """
        prefills = []
        chunks, requests = step.chunks, step.requests
        block_size = self.cache.block_size
        sets = self._sets
        running, grow, decode = sets.running, sets.grow, Phase.DECODE
        tokens_left = step.tokens_left
        if self.config.pipeline_stages > 1:  # divide the requests among the steps in flight
            wait_for_tokens = True
            tokens_left = min(tokens_left, self._decode_share())
        for request in running:  # preemption removes from its end
            if request.phase is not decode:
                if request.phase is Phase.PREFILL:
                    prefills.append(request)
                elif request.phase is Phase.FORCED_TOKENS:
                    tokens_left -= schedule_forced_tokens(step, request, sets, tokens_left)
                elif request.phase is Phase.BEAM_SEARCH:
                    tokens_left = max(0, tokens_left - self._schedule_beams(step, request))
                continue
            if not tokens_left:
                continue
            total = len(request.token_ids) + request.num_in_flight
            if total >= request.max_total:  # its last token may be in flight
                continue
            if request.num_in_flight and (wait_for_tokens or request.num_in_flight > request.steps_in_flight):
                continue
            if total > len(request.block_table) * block_size and not grow(step, request, total):
                continue
            chunks.append(ScheduledChunk(request.slot, total - 1, 1, True, request.request_id))
            requests.append(request)
            request.num_in_flight += 1
            request.steps_in_flight += 1
            tokens_left -= 1
        step.num_decodes = len(chunks)
        step.tokens_left -= len(chunks) + step.prefill_tokens
        return prefills

    def _decode_share(self) -> int:
        """Decodes of one of the steps in flight."""
        decoding = [request for request in self._sets.running if request.phase is not Phase.PREFILL]
        ready = sum(not request.num_in_flight for request in decoding)
        return decode_share(len(decoding), ready, len(self._launched), self.config.pipeline_stages)

    def _prefill_share(self, prefills: list[Request], may_admit: bool) -> int:
        """Prefill tokens of one of the steps in flight."""
        count = sum(step.prefill_tokens for step in self._launched.values())
        count += sum(request.num_computable for request in prefills)
        waiting = (len(request.token_ids) for request in (self._sets.waiting if may_admit else ()))
        return prefill_share(count, waiting, self.config.max_batch_tokens, self.config.pipeline_stages)

    def _schedule_beams(self, step: Step, request: Request) -> int:
        """Compute the next beams of a search, all or none; returns how many there are."""
        sets = self._sets
        group = sets.beam_groups[request]
        count = len(group.branches)
        if not count:  # their tokens are awaited
            return 0
        tokens_left = step.tokens_left - sum(chunk.count for chunk in step.chunks)
        if count > tokens_left:
            return 0
        scheduled = group.schedule(step, request, self.cache, sets.allocate_block, sets.freed_slots)
        return count if scheduled else 0

    def _admitted(self, step: Step, request: Request) -> None:
        """Count the prompt of a request that ``step`` admits, and describe it to the runner."""
        sets = self._sets
        if request.queue_seconds is None:
            request.queue_seconds = time.monotonic() - request.created
        group = sets.sample_groups.get(request)
        if request.cached_tokens is None and not (group is not None and group.counted):
            # Tokens that the grammar forced may already stand behind the prompt, and be cached with it.
            request.cached_tokens = min(request.num_cached, request.num_prompt_tokens)
            self._prompt_tokens += request.num_prompt_tokens
            self._cached_tokens += request.cached_tokens
            if group is not None:
                group.counted = True
        beams = sets.beam_groups.get(request)
        sampling = request.sampling if beams is None else beams.search.slot_sampling
        step.new_requests.append(new_request(request, sampling))

    # ── its result ──────────────────────────────────────────────────────────────────────────────────────────────────

    def update(
        self, plan: StepPlan, result: StepResult, seconds: float | None = None, host: float = 0.0
    ) -> list[RequestOutput]:
        """Deliver what a launched step sampled. Call it once for each plan, in order.

        Blocks enter the prefix cache here and not at launch: now their KV exists and their tokens are known.

        Args:
            seconds: how long the device worked on the step, for the prefill budget.
            host: how long it had waited for it since the step before, for the drafter.
        """
        step = self._launched.pop(plan.step)
        if seconds is not None:
            if step.encoder and self.images is not None:
                self.images.observe(step, seconds, self.budget.cost.usual_decode)
            else:
                launched = is_launched(step, result)
                self.budget.observe(step.num_decodes, step.prefill_tokens, seconds, launched=launched)
            if self._drafter is not None and not step.encoder:
                self._drafter.observe_step(step_tokens(step), seconds, host)
        if result.draft_invalid and self._drafter is not None:
            self._drafter.failed()
        if result.prompt_logprobs:
            collect_prompt_logprobs(step, result)
        outputs = self._end_invalid(step, result.invalid) if result.invalid else []
        outputs += [self.end(*each) for each in exhausted(step, result)]
        sampled = enumerate(zip(result.tokens, result.logprobs, strict=True))
        cache, finished = self.cache, Phase.FINISHED
        for chunk, request in zip(step.chunks, step.requests, strict=True):
            request.steps_in_flight -= 1
            if not chunk.sample:
                if request.slot != NO_SLOT:
                    register_blocks(request, chunk.start + chunk.count, cache)
                continue
            index, (tokens, logprobs) = next(sampled)
            if request.phase is finished:
                continue
            request.num_in_flight -= 1 + chunk.num_draft_tokens
            if request.is_beam_search:
                outputs += self._advance_beams(request, tokens, logprobs)
            elif tokens:
                if chunk.num_draft_tokens:
                    tree = result.trees.get(index)
                    output = self._append_verified(step, chunk, request, tokens, logprobs, tree)
                else:
                    output = append_sampled(request, tokens, logprobs, cache)
                self._generation_tokens += len(output.token_ids) + (output.stop_token_id is not None)
                if output.finish_reason is not None:
                    self._finish(request)
                    if request.preempted_after:
                        output = msgspec.structs.replace(output, preempted_after=request.preempted_after)
                outputs.append(output)
            else:  # a draft token was rejected, and no token came
                resume_decoding(request)
        for index, embedding in result.embeddings.items():
            request = step.requests[index]
            if request.phase is not finished:
                self._finish(request)
                outputs.append(pooled_output(request, embedding))
        return outputs

    def _end_invalid(self, step: Step, invalid: list[int]) -> list[RequestOutput]:
        """End the requests of sampling chunks whose logits are no numbers. Nobody else may compute with their KV, which
        is none either."""
        outputs: list[RequestOutput] = []
        sampling = [request for chunk, request in zip(step.chunks, step.requests, strict=True) if chunk.sample]
        for request in (sampling[index] for index in invalid):
            if request.phase is Phase.FINISHED:  # another beam of the same search
                continue
            group = self._sets.beam_groups.get(request)
            self.cache.forget(request.block_table)
            for beam in () if group is None else group.beams:
                self.cache.forget(beam.blocks)
            outputs += invalid_outputs((request.request_id,) if group is None else group.output_ids)
            self._finish(request)
        return outputs

    def _advance_beams(
        self, request: Request, tokens: list[int], logprobs: list[TokenLogprobs] | None
    ) -> list[RequestOutput]:
        """Take the candidates of one beam; the outputs when the search is over."""
        if request.slot == NO_SLOT:  # preempted: it starts again
            return []
        assert logprobs is not None
        group = self._sets.beam_groups[request]
        if not group.beams:
            register_blocks(request, request.num_prompt_tokens, self.cache)
        group.collect(tokens[0], logprobs[0])
        if request.num_in_flight or group.advance(request):
            return []
        outputs = group.outputs(request)
        self._generation_tokens += sum(len(output.token_ids) for output in outputs)
        self._finish(request)
        return outputs

    def guided(self, plan: StepPlan) -> list[GuidedChunk]:
        """The sampling chunks of a launched plan whose request has a grammar and goes on."""
        if not self._num_guided:
            return []
        found = []
        row = 0
        for chunk, request in zip(plan.chunks, self._launched[plan.step].requests, strict=True):
            if not chunk.sample:
                continue
            if request.grammar is not None and request.phase is not Phase.FINISHED:
                found.append(GuidedChunk(row, request, request.grammar, chunk.num_guesses))
            row += chunk.num_sampled
        return found

    def limit_sampled(self, plan: StepPlan, guided: GuidedChunk, most: int) -> None:
        """Take only the first ``most`` tokens that a launched step samples for a request with a grammar."""
        self._launched[plan.step].most_sampled[guided.request.slot] = most

    def _append_verified(
        self,
        step: Step,
        chunk: ScheduledChunk,
        request: Request,
        tokens: list[int],
        logprobs: list[TokenLogprobs] | None,
        tree: TreeResult | None,
    ) -> RequestOutput:
        """Append what a decode with draft tokens brings, as far as its grammar goes: all but the last token equal
        drafts."""
        most = step.most_sampled.get(chunk.slot, len(tokens))
        tokens = tokens[:most]
        accepted, known = len(tokens) - 1, len(request.token_ids)
        if self._drafter is not None:
            self._drafter.observe(request, chunk.num_guesses, accepted, () if tree is None else tree.window)
        output = append_sampled(request, tokens, logprobs and logprobs[:most], self.cache)
        if tree is not None and request.slot != NO_SLOT:
            self._accepted.add(request, known, tree.path[:accepted], self.cache.block_size)
        accepted = min(accepted, len(output.token_ids))
        return msgspec.structs.replace(output, draft_tokens=chunk.num_guesses, accepted_tokens=accepted)

    def end(self, request: Request, error: RequestError) -> RequestOutput:
        """End a live request because of an error that is its own."""
        self._finish(request)
        return RequestOutput(request_id=request.request_id, finish_reason="abort", error=error)

    def _finish(self, request: Request) -> None:
        group = self._sets.beam_groups.get(request)
        self._sets.finish(request)
        if self._drafter is not None:
            self._drafter.forget(request)
        if request.grammar is not None:
            self._num_guided -= 1
        for request_id in (request.request_id,) if group is None else group.output_ids:
            if request_id is not None:
                del self._requests[request_id]
