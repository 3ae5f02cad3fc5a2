"""The judgement of shadow traffic, on counters as routers report them."""

from __future__ import annotations

import math
import random

import pytest

from blade_operator.analysis.compare import Tolerances
from blade_operator.analysis.shadow import ShadowJudgement, judge_shadow
from blade_protocol.signals import Differences, RevisionSignals, ShadowSignals


def shadow(compared: int = 100, errors: tuple[int, int] = (0, 0), **changed: object) -> ShadowSignals:
    return ShadowSignals(
        revision="new",
        sent=compared,
        copies=RevisionSignals(revision="new", requests=compared, errors=errors[0]),
        originals=RevisionSignals(revision="", requests=compared, errors=errors[1]),
        **changed,  # type: ignore[arg-type]
    )


def judged(*found: ShadowSignals, tolerances: Tolerances | None = None) -> ShadowJudgement:
    return judge_shadow(found, "old", tolerances or Tolerances(), 3)


def test_what_all_routers_report_is_added_up() -> None:
    judgement = judged(shadow(60, (12, 1), same=3, dropped={"busy": 1, "large": 2}), shadow(60, (12, 0), different=1))
    assert judgement.bad == ("24 of 120 requests failed (20.0%), of revision old 1 of 120 (0.8%)",)
    assert (judgement.compared, judgement.same, judgement.different) == (120, 3, 1)
    assert judgement.dropped == (("large", 2), ("busy", 1))


def test_errors_of_both_alike_are_not_bad() -> None:
    assert judged(shadow(200, (100, 100))).bad == ()
    assert judged(shadow(200, (6, 3))).bad == ()


def test_latencies_lengths_and_finish_reasons_are_compared() -> None:
    mean = math.log(1.5)
    slow = Differences(batches=40, total=40 * mean, squares=40 * (mean * mean + 0.04))
    found = ShadowSignals(
        revision="new",
        copies=RevisionSignals(
            revision="new", requests=300, ttft=slow, finish_reasons={"length": 300}, lengths=(0, 0, 0, 300)
        ),
        originals=RevisionSignals(revision="", requests=300, finish_reasons={"stop": 300}, lengths=(300, 0, 0, 0)),
    )
    assert len(judged(found).bad) == 3
    assert judged(found, tolerances=Tolerances(latency=2.0, answers=1.0)).bad == ()


def test_different_texts_are_reported_only() -> None:
    judgement = judged(shadow(100, different=100))
    assert judgement.bad == ()
    assert judgement.result() == "100 copies were compared; 0 of 100 greedy requests have the same text"
    assert judged(shadow(100)).result() == "100 copies were compared"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ((), "no router reports copies"),
        ((shadow(0),), "0 of 100 copies are compared"),
        ((shadow(39, same=30, different=9),), "30 of 100 copies are compared; of greedy requests about 80 % have"),
        ((shadow(39, same=5),), "30 of 100 copies are compared"),
        (
            (shadow(9, dropped={"busy": 7, "large": 3}),),
            "0 of 100 copies are compared; what is not copied, or compared: busy",
        ),
    ],
)
def test_progress_in_words(found: tuple[ShadowSignals, ...], text: str) -> None:
    assert judged(*found).progress(100).startswith(text)


def test_equal_revisions_are_seldom_bad_however_often_one_looks() -> None:
    draws = random.Random(5)
    bad = 0
    for _ in range(300):
        errors = [0, 0]
        for number in range(1, 300):
            for side in (0, 1):
                errors[side] += draws.random() < 0.1
            if judged(shadow(number, (errors[0], errors[1]))).bad:
                bad += 1
                break
    assert bad <= 3
