"""A request's phase: one enum, whose transitions are checked."""

from __future__ import annotations

import pytest
from engine_support.scheduler_driver import EOS, add, deliver, plan_of, scheduler_of

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.phase import RUNNING_PHASES, TRANSITIONS, WAITING_PHASES, Phase
from blade_llm.scheduling.request import Request
from blade_llm.scheduling.scheduler import Scheduler


def phase_of(scheduler: Scheduler, name: str) -> Phase:
    return scheduler._requests[name].phase


def test_every_phase_is_waiting_or_running_or_the_end() -> None:
    assert frozenset(Phase) == WAITING_PHASES | RUNNING_PHASES | {Phase.FINISHED}
    assert set(TRANSITIONS) == set(Phase)
    assert all(Phase.FINISHED in following for phase, following in TRANSITIONS.items() if phase is not Phase.FINISHED)


@pytest.mark.parametrize("phase", Phase)
def test_only_the_legal_transitions_are_allowed(phase: Phase) -> None:
    for following in Phase:
        request = Request("r", [1, 2, 3], SamplingParams(), phase=phase)
        if following in TRANSITIONS[phase]:
            request.enter_phase(following)
            assert request.phase is following
        else:
            with pytest.raises(AssertionError, match="r cannot go from"):
                request.enter_phase(following)


def test_a_request_goes_from_waiting_over_prefill_to_decode_and_its_end() -> None:
    scheduler = scheduler_of(budget=16)
    add(scheduler, "a", 20)
    request = scheduler._requests["a"]
    assert request.phase is Phase.WAITING
    deliver(scheduler, plan_of(scheduler))
    assert request.phase is Phase.PREFILL
    deliver(scheduler, plan_of(scheduler))
    assert request.phase is Phase.DECODE
    deliver(scheduler, plan_of(scheduler), [EOS])
    assert request.phase is Phase.FINISHED


def test_a_preempted_request_starts_over_with_its_prefill() -> None:
    scheduler = scheduler_of(blocks=4)
    add(scheduler, "a", 16, max_tokens=40)
    add(scheduler, "b", 16, max_tokens=40)
    while phase_of(scheduler, "b") is not Phase.PREEMPTED:
        deliver(scheduler, plan_of(scheduler))
    assert phase_of(scheduler, "a") is Phase.DECODE
    scheduler.abort(["a"])
    plan_of(scheduler)
    assert phase_of(scheduler, "b") is Phase.DECODE


def test_a_pooled_prompt_awaits_its_state_and_beams_stay_in_their_phase() -> None:
    scheduler = scheduler_of()
    scheduler.add(Request("p", [1, 2, 3], SamplingParams(), pooling="mean"))
    scheduler.add(Request("s", [1, 2, 3], SamplingParams(beam_width=2)))
    plan_of(scheduler)
    assert phase_of(scheduler, "p") is Phase.AWAITING_RESULTS
    assert phase_of(scheduler, "s") is Phase.BEAM_SEARCH
