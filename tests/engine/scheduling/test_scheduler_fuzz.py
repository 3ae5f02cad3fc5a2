"""Random arrivals, lengths, cancels, stops, priorities, shared prefixes and late results on caches that are too small.

After every call all invariants hold, and every request gets the very tokens it would get alone. The fake runner, for
its part, finds any block that was shared wrongly or reused too early.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

from engine_support.examples import examples
from engine_support.fake_beams import beams_alone
from engine_support.fake_core import EOS
from engine_support.fake_runner import (
    FakePendingStep,
    FakeRunner,
    FakeSlot,
    context_of,
    fake_embedding,
    tokens_alone,
)
from engine_support.sched_invariants import check_invariants
from engine_support.scripted_drafter import ScriptedDrafter
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blade_llm.cache.manager import KVCacheManager
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.output import RequestOutput
from blade_llm.scheduling.plan import StepPlan
from blade_llm.scheduling.request import Request, RequestRefusedError
from blade_llm.scheduling.scheduler import Scheduler

MAX_MODEL_LEN = 120
VOCABULARY = 23
SHARED = [(7 * i + 3) % 19 for i in range(MAX_MODEL_LEN)]
"""Most prompts begin with a piece of this."""


class SpeculatingRunner(FakeRunner):
    """Each sample brings any number of tokens from one to one more than was drafted."""

    def tokens_for(self, slot: FakeSlot, num_draft_tokens: int) -> int:
        return 1 + hash((len(slot.token_ids), self.num_steps)) % (num_draft_tokens + 1)


class SchedulerMachine(RuleBasedStateMachine):
    """A scheduler, the fake runner, and up to ``depth`` launched steps whose results are still to come."""

    speculate = False

    @initialize(
        num_blocks=st.integers(4, 12),
        slots=st.integers(1, 5),
        budget=st.integers(1, 40),
        depth=st.integers(1, 4),
        stages=st.sampled_from([1, 1, 2, 3]),
        drafts=st.integers(0, 4),
        prefix_cache=st.booleans(),
    )
    def start(
        self, num_blocks: int, slots: int, budget: int, depth: int, stages: int, drafts: int, prefix_cache: bool
    ) -> None:
        self.depth = depth
        runner_type = SpeculatingRunner if self.speculate else FakeRunner
        self.runner = runner_type(num_blocks, slots, MAX_MODEL_LEN, VOCABULARY, max_batch_tokens=budget)
        config = SchedulerConfig(
            max_num_seqs=slots,
            max_batch_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=(EOS,),
            pipeline_stages=stages,
        )
        cache = KVCacheManager(num_blocks, enable_prefix_cache=prefix_cache)
        self.scheduler = Scheduler(config, cache, drafter=ScriptedDrafter(drafts) if self.speculate else None)
        self.in_flight: deque[tuple[StepPlan, FakePendingStep]] = deque()
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}
        self.samples: set[str] = set()
        self.ended: dict[str, tuple[str, int | None]] = {}
        self.aborted: set[str] = set()

    @rule(
        head=st.integers(0, 2),
        shared=st.integers(0, MAX_MODEL_LEN - 16),
        own=st.lists(st.integers(0, VOCABULARY - 1), max_size=30),
        max_tokens=st.integers(1, 60),
        min_tokens=st.integers(0, 8),
        seed=st.none() | st.integers(0, 3),
        stop_token_ids=st.sampled_from([(), (5,), (1, 4, 9)]),
        ignore_eos=st.booleans(),
        priority=st.integers(0, 1),
        cache_salt=st.sampled_from(["", "", "other"]),
    )
    def add(
        self,
        head: int,
        shared: int,
        own: list[int],
        max_tokens: int,
        min_tokens: int,
        seed: int | None,
        stop_token_ids: tuple[int, ...],
        ignore_eos: bool,
        priority: int,
        cache_salt: str,
    ) -> None:
        sampling = SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min(min_tokens, max_tokens),
            temperature=0.0 if seed is None else 0.8,
            seed=seed,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
        )
        name = str(len(self.requests))
        prompt = [head] * (16 if head else 0) + SHARED[:shared] + own  # the same blocks behind different ones
        request = Request(name, prompt, sampling, priority=priority, cache_salt=cache_salt)
        try:
            self.scheduler.add(request)
        except RequestRefusedError:
            longest = min(request.num_prompt_tokens + max_tokens, MAX_MODEL_LEN)
            fits = longest - 1 <= self.runner.num_blocks * self.scheduler.cache.block_size
            assert not fits or not 0 < request.num_prompt_tokens < MAX_MODEL_LEN
            return
        self.requests[name] = request
        self.tokens[name] = []

    @rule(prompts=st.lists(st.integers(1, 30), min_size=2, max_size=6), max_tokens=st.integers(20, 60))
    def add_several(self, prompts: list[int], max_tokens: int) -> None:
        """Long outputs to short prompts: what admission lets in outgrows the cache."""
        for length in prompts:
            self.add(0, length, [len(self.requests) % VOCABULARY], max_tokens, 0, 1, (), True, 0, "")

    @rule(
        shared=st.integers(0, 60),
        own=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20),
        count=st.integers(2, 8),
        max_tokens=st.integers(1, 40),
    )
    def add_samples(self, shared: int, own: list[int], count: int, max_tokens: int) -> None:
        """Of one prompt: they share its blocks."""
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.8, seed=1)
        names = [str(len(self.requests) + index) for index in range(count)]
        samples = [Request(name, SHARED[:shared] + own, sampling, index) for index, name in enumerate(names)]
        try:
            self.scheduler.add(*samples)
        except RequestRefusedError:
            return
        self.samples.update(names)
        for name, request in zip(names, samples, strict=True):
            self.requests[name] = request
            self.tokens[name] = []

    @rule(
        shared=st.integers(0, 60),
        own=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20),
        pooling=st.sampled_from(["last", "mean"]),
        logprobs=st.none() | st.just(1),
    )
    def add_pooled(self, shared: int, own: list[int], pooling: Literal["last", "mean"], logprobs: int | None) -> None:
        name, sampling = str(len(self.requests)), SamplingParams(prompt_logprobs=logprobs)
        request = Request(name, SHARED[:shared] + own, sampling, pooling=pooling)
        try:
            self.scheduler.add(request)
        except RequestRefusedError:
            return
        self.requests[name] = request
        self.tokens[name] = []

    @precondition(lambda self: not self.speculate)
    @rule(
        prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
        width=st.integers(2, 5),
        max_tokens=st.integers(1, 30),
    )
    def add_beams(self, prompt: list[int], width: int, max_tokens: int) -> None:
        name = str(len(self.requests))
        request = Request(name, prompt, SamplingParams(max_tokens=max_tokens, beam_width=width))
        try:
            self.scheduler.add(request)
        except RequestRefusedError:
            return
        self.requests[name] = request
        self.tokens[name] = []

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        if name not in self.ended:
            self.aborted.add(name)
        self.scheduler.abort([name, "unknown"])

    @rule()
    def launch(self) -> None:
        self._launch()

    def _launch(self) -> bool:
        if len(self.in_flight) == self.depth:
            return False
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        if self.scheduler.config.pipeline_stages > 1:
            awaited = {chunk.request_id for earlier, _ in self.in_flight for chunk in earlier.chunks if chunk.sample}
            assert awaited.isdisjoint(chunk.request_id for chunk in plan.chunks), "its token is not there yet"
        self.in_flight.append((plan, self.runner.launch_sampling(self.runner.launch_forward(plan))))
        return True

    @precondition(lambda self: self.in_flight)
    @rule(seconds=st.none() | st.floats(0.0, 10.0))
    def draw(self, seconds: float | None) -> None:
        plan, pending = self.in_flight.popleft()
        for output in self.scheduler.update(plan, pending.result(), seconds):
            self._take(output)

    @rule(count=st.integers(1, 12))
    def go_on(self, count: int) -> None:
        for _ in range(count):
            launched = self._launch()
            check_invariants(self.scheduler)
            if self.in_flight and (not launched or len(self.in_flight) == self.depth):
                self.draw(0.01)
                check_invariants(self.scheduler)

    @invariant()
    def invariants_hold(self) -> None:
        if hasattr(self, "scheduler"):
            check_invariants(self.scheduler)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        steps, ended = 0, len(self.ended)
        while self.scheduler.has_work or self.in_flight:
            steps, ended = (steps + 1, ended) if len(self.ended) == ended else (0, len(self.ended))
            assert steps < 10_000, "no request ends"
            if not self._launch():
                assert self.in_flight, "nothing runs and nothing is awaited"
                self.draw(None)
            check_invariants(self.scheduler)
        assert self.scheduler.cache.num_free == self.runner.num_blocks
        assert self.scheduler.stats().running == self.scheduler.stats().waiting == 0
        for name, request in self.requests.items():
            expected, reason, stop = _alone(request)
            got = self.tokens[name]
            if name in self.aborted:
                assert got == expected[: len(got)]
                assert name not in self.ended
            else:
                assert got == expected
                assert self.ended[name] == (reason, stop)

    def _take(self, output: RequestOutput) -> None:
        name = output.request_id
        assert name not in self.ended, "output after the end"
        assert name not in self.aborted, "output after the abort"
        request = self.requests[name]
        if not self.tokens[name]:
            assert (output.cached_tokens or 0) < request.num_prompt_tokens
            assert name in self.samples or output.cached_tokens is not None
        else:
            assert output.cached_tokens is None
        if request.pooling:
            context = context_of(request.prompt_token_ids)
            assert output.embedding == fake_embedding(context, request.pooling)
            assert (output.prompt_logprobs is None) == (request.sampling.prompt_logprobs is None)
            assert len(output.prompt_logprobs or context) == len(context)
        self.tokens[name] += output.token_ids
        if output.finish_reason is not None:
            self.ended[name] = (output.finish_reason, output.stop_token_id)


def _alone(request: Request) -> tuple[list[int], str, int | None]:
    if request.pooling:
        return [], "stop", None
    limits: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "eos_token_ids": (EOS,),
        "max_model_len": MAX_MODEL_LEN,
    }
    if request.is_beam_search:
        return beams_alone(request.prompt_token_ids, request.sampling, **limits)[0]
    return tokens_alone(request.prompt_token_ids, request.sampling, sample_index=request.sample_index, **limits)


class SpeculatingMachine(SchedulerMachine):
    speculate = True


SETTINGS = settings(
    max_examples=examples(60),
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = SETTINGS
TestSpeculation = SpeculatingMachine.TestCase
TestSpeculation.settings = settings(SETTINGS, max_examples=examples(40))
