"""The judgement of a canary, on counters as routers report them."""

import math

from blade_operator.analysis.compare import Tolerances, judge
from blade_protocol.signals import Differences, RevisionSignals

OLD = RevisionSignals(
    revision="old",
    weight=95,
    requests=3800,
    errors=8,
    lengths=(0, 100, 800, 2000, 892, 0, 0, 0),
    finish_reasons={"stop": 3200, "length": 592},
)


def new(**changed: object) -> RevisionSignals:
    equal: dict[str, object] = {
        "revision": "new",
        "weight": 5,
        "requests": 200,
        "errors": 0,
        "ttft": batches(1.0),
        "tpot": batches(1.0),
        "lengths": (0, 5, 42, 105, 48, 0, 0, 0),
        "finish_reasons": {"stop": 168, "length": 32},
    }
    return RevisionSignals(**(equal | changed))  # type: ignore[arg-type]


def batches(ratio: float, count: int = 25) -> Differences:
    """Batches with this ratio, and a standard deviation of 0.2."""
    mean = math.log(ratio)
    return Differences(batches=count, total=count * mean, squares=count * (mean * mean + 0.04))


def bad(found: RevisionSignals, tolerances: Tolerances | None = None) -> tuple[str, ...]:
    return judge(found, OLD, tolerances or Tolerances(), 3).bad


def test_an_equal_revision_is_not_bad() -> None:
    judgement = judge(new(), OLD, Tolerances(), 3)
    assert (judgement.requests, judgement.bad) == (200, ())


def test_errors_are_named_with_their_numbers() -> None:
    assert bad(new(errors=10)) == ("10 of 200 requests failed (5.0%), of revision old 8 of 3800 (0.2%)",)
    assert bad(new(errors=10), Tolerances(errors=0.06)) == ()
    assert bad(new(errors=1)) == ()


def test_errors_that_strike_both_alike_are_not_bad() -> None:
    struck = RevisionSignals(revision="old", requests=3800, errors=1900)
    assert judge(new(errors=100), struck, Tolerances(), 3).bad == ()


def test_each_latency_is_compared() -> None:
    assert bad(new(ttft=batches(1.5))) == ("TTFT is 1.50 times as long, over 25 batches",)
    assert bad(new(tpot=batches(1.5))) == ("TPOT is 1.50 times as long, over 25 batches",)
    assert bad(new(unary=batches(2.0))) == ("time of a unary response is 2.00 times as long, over 25 batches",)
    assert bad(new(ttft=batches(1.1))) == (), "within the tolerance"
    assert bad(new(ttft=batches(0.5))) == (), "faster"
    assert bad(new(ttft=batches(1.5, 4))) == (), "too few to tell"
    assert bad(new(ttft=batches(1.5)), Tolerances(latency=1.6)) == ()


def test_other_answers_are_bad_unless_they_may_differ() -> None:
    cut = new(finish_reasons={"stop": 80, "length": 120})
    assert bad(cut) == ("finish reasons of 44% of the responses differ: 60% are length, before 16%",)
    assert bad(cut, Tolerances(answers=1.0)) == ()
    short = new(lengths=(120, 5, 22, 35, 18, 0, 0, 0))
    assert bad(short) == ("lengths of 60% of the responses differ: 60% are below 4 tokens, before 0%",)


def test_nothing_is_said_of_revisions_without_requests() -> None:
    empty = RevisionSignals(revision="new")
    assert judge(empty, OLD, Tolerances(), 3).bad == ()
    assert judge(new(errors=100), RevisionSignals(revision="old"), Tolerances(), 3).bad == ()
    assert judge(empty, RevisionSignals(revision="old"), Tolerances(), 0).bad == ()
