"""Copies of requests, counted pair by pair and added up over processes; and routers and operators of other versions."""

import msgspec
import pytest

from blade_protocol.signals import RevisionSignals, RouterSignals, ShadowSignals, add_shadows
from blade_router.observability.signals import merge_signals
from blade_router.statistics.answer import Answer
from blade_router.statistics.revisions import BATCH_REQUESTS, WARM_UP
from blade_router.statistics.shadow import MAX_SHADOWS, ShadowCounts, ShadowTotals, merge_shadows


def answer(sent: float, ttft: float, tokens: int = 20) -> Answer:
    found = Answer()
    found.sent = sent
    found.succeed(sent + ttft, sent + 1.0, True, tokens, b'{"finish_reason":"stop"}')
    return found


def test_latencies_are_those_of_pairs() -> None:
    counts = ShadowCounts("new", ShadowTotals())
    begun = Answer().sent + WARM_UP + 1.0
    for number in range(3 * BATCH_REQUESTS):
        counts.compared(answer(begun + number, 0.3), answer(begun + number, 0.2))
    found = counts.signals()
    assert found.copies.ttft.batches == found.originals.ttft.batches == 3
    assert found.copies.ttft.total == pytest.approx(-found.originals.ttft.total)
    assert found.copies.ttft.total > 0.3 * 3
    assert found.copies.finish_reasons == found.originals.finish_reasons == {"stop": 24}
    assert (found.copies.revision, found.originals.revision) == ("new", "")


def test_totals_outlive_a_revision() -> None:
    totals = ShadowTotals()
    for revision in ("new", "newer"):
        counts = ShadowCounts(revision, totals)
        counts.sent()
        counts.dropped("busy")
        counts.greedy(True)
        counts.greedy(False)
        assert counts.signals() == ShadowSignals(
            revision=revision,
            sent=1,
            dropped={"busy": 1},
            copies=RevisionSignals(revision=revision, lengths=(0,) * 8),
            originals=RevisionSignals(revision="", lengths=(0,) * 8),
            same=1,
            different=1,
        )
    assert dict(totals.requests) == {"sent": 2, "busy": 2}
    assert dict(totals.texts) == {"same": 2, "different": 2}


def some(revision: str = "new", number: int = 1) -> ShadowSignals:
    return ShadowSignals(
        revision=revision,
        sent=3 * number,
        dropped={"busy": number, f"because {number}": 1},
        copies=RevisionSignals(revision=revision, requests=2 * number, errors=number),
        originals=RevisionSignals(revision="", requests=2 * number),
        same=number,
    )


def test_processes_are_added_up() -> None:
    (found,) = merge_shadows((some(),), (some(number=2),))
    assert found == add_shadows(some(number=2), some())
    assert (found.sent, found.copies.requests, found.copies.errors, found.same) == (9, 6, 3, 3)
    assert found.dropped == {"busy": 3, "because 1": 1, "because 2": 1}
    both = merge_shadows((some(),), (some("other"),))
    assert [each.revision for each in both] == ["new", "other"]
    for number in range(20):
        both = merge_shadows(both, (some(f"r{number}"),))
    assert len(both) == MAX_SHADOWS


def test_workers_signals_are_merged() -> None:
    workers = [RouterSignals(started=0.0, time=0.0, shadows=shadows) for shadows in ((some(),), (), (some(),))]
    (found,) = merge_signals(workers).shadows
    assert found.sent == 6


def test_signals_survive_json() -> None:
    signals = RouterSignals(started=0.0, time=0.0, shadows=(some(),))
    assert msgspec.json.decode(msgspec.json.encode(signals), type=RouterSignals) == signals


def test_versions_without_shadow_traffic_understand_and_are_understood() -> None:
    class Earlier(msgspec.Struct):
        """What an operator of the release before reads."""

        started: float
        time: float
        revisions: tuple[RevisionSignals, ...] = ()

    now = msgspec.json.encode(RouterSignals(started=1.0, time=2.0, shadows=(some(),)))
    assert msgspec.json.decode(now, type=Earlier).started == 1.0
    before = msgspec.json.encode(Earlier(started=1.0, time=2.0))
    assert msgspec.json.decode(before, type=RouterSignals).shadows == ()
