"""What one client may take of an engine: waiting requests, slots of one request, and priority."""

from __future__ import annotations

import msgspec
import pytest
from engine_support.fake_core import core_of, run
from engine_support.fake_runner import FakeRunner

from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.limits import shared_widths
from blade_llm.scheduling.request import RequestRefusedError


def core_from(**values: object) -> EngineCore:
    """A core with the configuration that a server gives it."""
    config = EngineConfig(model="", served_names=("fake",), share_slots=True, **values)  # type: ignore[arg-type]
    runner = FakeRunner(num_blocks=200, max_num_seqs=config.max_num_seqs)
    info = EngineInfo(model="fake", max_model_len=1024, device="cpu", dtype="float32")
    return EngineCore.from_config(config, runner, info, num_blocks=200)


def request(name: str, count: int = 1, priority: int = 0, **sampling: object) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        sibling_ids=[f"{name}.{index}" for index in range(1, count)],
        prompt_token_ids=[7, 8, 9],
        sampling=SamplingParams(**{"max_tokens": 4, "seed": 1, **sampling}),  # type: ignore[arg-type]
        priority=priority,
    )


def test_no_more_requests_wait_than_may() -> None:
    core = core_from(max_num_seqs=2, max_waiting_requests=3)
    for number in range(5):
        core.add(request(f"r{number}"))
    with pytest.raises(RequestRefusedError, match="5 wait, no more may; try again") as refused:
        core.add(request("one too many"))
    assert refused.value.error.kind == "overloaded"
    core.step()
    with pytest.raises(RequestRefusedError, match="2 requests run and 3 wait"):
        core.add(request("one too many"))
    core.abort(["r4"])
    core.add(request("r5"))
    outputs = run(core)
    assert sorted(outputs) == ["r0", "r1", "r2", "r3", "r5"]
    core.add(request("later"))
    assert sorted(run(core)) == ["later"]


def test_samples_are_all_admitted_to_the_queue_or_none() -> None:
    core = core_from(max_num_seqs=2, max_waiting_requests=3)
    core.add(request("first"))
    with pytest.raises(RequestRefusedError, match="busy"):
        core.add(request("several", 5))
    core.add(request("several", 4))
    assert len(run(core)) == 5


def test_the_state_says_how_many_may_wait() -> None:
    for most in (None, 7):
        state = core_from(max_waiting_requests=most).state(epoch="e", sequence=1, draining=False)
        assert msgspec.to_builtins(state)["max_waiting"] == most


@pytest.mark.parametrize(
    ("slots", "beams", "samples"), [(1, 2, 16), (4, 2, 16), (8, 4, 16), (64, 32, 32), (256, 128, 128)]
)
def test_one_request_takes_half_of_the_slots_at_most(slots: int, beams: int, samples: int) -> None:
    assert shared_widths(slots) == (beams, samples)


def test_a_wider_request_is_refused_with_what_to_change() -> None:
    core = core_from(max_num_seqs=64)
    with pytest.raises(RequestRefusedError, match=r"beam_width is 33, but one request may have 32 beams.* at most 32"):
        core.add(request("wide", beam_width=33, temperature=0.0))
    with pytest.raises(RequestRefusedError, match=r"n is 33, but one request may have 32 samples.* at most 32"):
        core.add(request("many", 33))
    assert not core.has_work
    core.add(request("many", 32))
    assert len(run(core)) == 32


@pytest.mark.parametrize(("allowed", "first"), [(False, "before"), (True, "urgent")])
def test_a_client_cannot_go_ahead_of_others_unless_allowed(allowed: bool, first: str) -> None:
    core = core_from(max_num_seqs=1, allow_client_priority=allowed)
    core.add(request("before"))
    core.add(request("urgent", priority=-5))
    core.add(request("patient", priority=3))
    ended = [
        output.request_id
        for _ in range(30)
        for output in (core.step() if core.has_work else [])
        if output.finish_reason
    ]
    assert ended[0] == first
    assert ended[-1] == "patient"


def test_a_core_without_bounds_takes_any_number() -> None:
    core = core_of(FakeRunner(num_blocks=200), num_blocks=200, max_num_seqs=4, max_model_len=64)
    core.add(request("many", 100))
    assert len(run(core)) == 100
