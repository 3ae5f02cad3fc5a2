"""Rank 0's runner: every step goes to the others before rank 0 computes it, once whatever their number."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import cast

import pytest
from engine_support.fake_core import core_of
from engine_support.fake_ranks import masks_of_words, plan_of
from engine_support.fake_runner import FakeRunner

from blade_llm.engine.messages import GenerateRequest
from blade_llm.engine.ranks.lost import RankFailedError, rank_failed
from blade_llm.engine.ranks.messages import (
    ForwardMessage,
    ReleaseCacheMessage,
    SamplingMessage,
    decode,
    encode_forward,
    encode_release_cache,
    encode_sampling,
)
from blade_llm.engine.ranks.monitor import NamingTheRank, RankMonitor
from blade_llm.engine.ranks.runner import LoadedRunner, RankedRunner
from blade_llm.parallel.group import RankLostError
from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import PendingForward, PendingStep, StepPlan, StepResult
from blade_llm.spec.vision.images import ImagePixels


class Events:
    """The other ranks and rank 0's runner, which write down who did what."""

    def __init__(self, fails: str = "") -> None:
        self.events: list[object] = []
        self.lost: RankFailedError | None = None
        self._fails = fails
        self._monitor = RankMonitor(cause_seconds=0.0)

    def send(self, payload: bytes, frames: Sequence[bytes] = ()) -> None:
        self.events += [payload, *frames]

    def raise_if_lost(self) -> None:
        if self.lost is not None:
            raise self.lost

    def naming_the_rank(self) -> contextlib.AbstractContextManager[None, None]:
        return NamingTheRank(self._monitor)

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> PendingForward:
        return self._do("forward")

    def draft_tokens(self, forward: PendingForward) -> dict[int, list[int]]:
        self._do("drafts")
        return {4: [5]}

    def release_cache(self) -> None:
        self._do("release")

    def launch_sampling(self, forward: PendingForward, masks: TokenMasks | None = None) -> PendingStep:
        return cast(PendingStep, self._do("sampling"))

    def done(self) -> bool:
        return True

    def result(self) -> StepResult:
        self._do("result")
        return StepResult([[1]], [None])

    def _do(self, name: str) -> Events:
        self.events.append(name)
        if name == self._fails:
            raise RankLostError("rank 1 did not come")
        return self


def ranked(events: Events) -> RankedRunner:
    return RankedRunner(cast(LoadedRunner, events), events)


def _step(runner: RankedRunner) -> None:
    forward = runner.launch_forward(plan_of(1))
    runner.draft_tokens(forward)
    runner.launch_sampling(forward).result()


def test_a_step_is_sent_before_it_is_computed() -> None:
    events = Events()
    runner, plan, masks = ranked(events), plan_of(1, 2), masks_of_words([1], 3)
    forward = runner.launch_forward(plan)
    assert runner.draft_tokens(forward) == {4: [5]}
    step = runner.launch_sampling(forward, masks)
    assert step.done()
    assert step.result().tokens == [[1]]
    sent = (encode_forward(plan), "forward", "drafts", encode_sampling(masks), "sampling", "result")
    assert tuple(events.events) == sent


def test_pixels_go_behind_the_message_of_their_step() -> None:
    events = Events()
    pixels = bytes(range(48))
    image = ImagePixels(bytes(32), (1, 2, 2), (1, 4, 4, 3), pixels)
    ranked(events).launch_forward(StepPlan(1, [], new_images=[image]))
    message, *others = events.events
    assert isinstance(message, bytes)
    assert pixels not in message
    assert others == [pixels, "forward"]


def test_a_step_that_samples_nothing_has_both_messages() -> None:
    """A long prompt's first chunks sample nothing; the other ranks see the same calls as rank 0 all the same."""
    events = Events()
    inner = FakeRunner(max_model_len=256)
    runner = RankedRunner(cast(LoadedRunner, inner), events)
    core = core_of(runner, num_blocks=64, max_num_seqs=4, max_model_len=256, max_batch_tokens=16)
    sampling = SamplingParams(max_tokens=2, seed=1, ignore_eos=True)
    core.add(GenerateRequest(request_id="a", prompt_token_ids=list(range(3, 43)), sampling=sampling))
    while core.has_work:
        core.step()
    messages = [decode(payload) for payload in events.events if isinstance(payload, bytes)]
    plans = [message.plan for message in messages if isinstance(message, ForwardMessage)]
    assert plans == inner.plans
    assert not plans[0].chunks[0].sample
    assert [type(message) for message in messages] == [ForwardMessage, SamplingMessage] * len(plans)


def test_all_ranks_give_their_caches_back() -> None:
    events = Events()
    ranked(events).release_cache()
    assert events.events == [encode_release_cache(), "release"]
    assert isinstance(decode(encode_release_cache()), ReleaseCacheMessage)


@pytest.mark.parametrize("where", ["forward", "drafts", "sampling", "result"])
def test_the_error_of_a_collective_names_the_rank(where: str) -> None:
    runner = ranked(Events(where))
    with pytest.raises(RankFailedError, match=r"^rank 1 did not come$"):
        _step(runner)


def test_no_step_begins_without_all_ranks() -> None:
    events = Events()
    events.lost = rank_failed(1, "exited with status 3")
    with pytest.raises(RankFailedError, match="rank 1 exited with status 3"):
        ranked(events).launch_forward(plan_of(1))
    assert not events.events


class Waiting(Events):
    """A step that is done after so many looks, or never."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def done(self) -> bool:
        self._looks -= 1
        return self._looks == 0

    def raise_if_lost(self) -> None:
        if self.events and self._looks < -3:
            raise rank_failed(1, "was ended by SIGKILL")


def test_who_cannot_be_freed_looks_for_lost_ranks_while_it_waits() -> None:
    done = Waiting(3)
    runner = RankedRunner(cast(LoadedRunner, done), done, polls=True)
    assert runner.launch_sampling(runner.launch_forward(plan_of(1))).result().tokens == [[1]]
    never = Waiting(-1)
    runner = RankedRunner(cast(LoadedRunner, never), never, polls=True)
    step = runner.launch_sampling(runner.launch_forward(plan_of(1)))
    with pytest.raises(RankFailedError, match="rank 1 was ended by SIGKILL"):
        step.result()
    assert "result" not in never.events


def test_what_the_engine_wants_to_know_is_rank_0s() -> None:
    inner = FakeRunner()
    runner = RankedRunner(cast(LoadedRunner, inner), Events())
    assert runner.num_blocks == inner.num_blocks
    assert runner.max_model_len == inner.max_model_len
    assert runner.memory_plan is inner.memory_plan
    assert runner.timings is inner.timings
