"""What is loaded and unloaded, and what is said of it: by the engines' lists alone."""

from __future__ import annotations

from typing import Any

import msgspec
from operator_support.mini_cluster import engine_state

from blade_operator.adapters.decide import RETRY, SOON, Decision, decide
from blade_operator.model.plan import LoadAdapter, UnloadAdapter
from blade_operator.spec.adapters.fields import Adapter
from blade_protocol.adapters import AdapterInfo

PODS = ("p0", "p1", "p2")


def adapter(name: str = "sql", replicas: int | None = None, **fields: Any) -> tuple[Adapter, str]:
    return Adapter(name=name, uri=f"file:///{name}", replicas=replicas, **fields), f"/{name}"


def info(name: str = "sql", path: str | None = None, state: Any = "loaded", reason: str = "") -> AdapterInfo:
    return AdapterInfo(
        name=name, path=path or f"/{name}", tier="host", rank=8, nbytes=100, digest="d", state=state, reason=reason
    )


def decided(*declared: tuple[Adapter, str], known: tuple[str, ...] = (), **lists: list[AdapterInfo]) -> Decision:
    return decide(declared, known, {pod: lists.get(pod, []) for pod in PODS}, {})


def test_an_adapter_is_loaded_on_all_engines() -> None:
    decision = decided(adapter(pinned=True, preload=False))
    assert decision.actions == [LoadAdapter(pod, "sql", "/sql", True, False) for pod in PODS]
    [status] = decision.statuses
    assert (status.desired, status.pods, status.failed) == (3, (), False)
    assert decision.requeue == [SOON] * 3


def test_what_loads_is_waited_for() -> None:
    lists = {pod: [info(state="loading")] for pod in PODS}
    decision = decided(adapter(), **lists)
    assert decision.actions == []
    assert decision.requeue == [SOON] * 3
    assert decision.statuses[0].pods == ()


def test_nothing_is_done_once_all_is_there() -> None:
    lists = {pod: [info(path="/sql/")] for pod in PODS}
    decision = decided(adapter(), known=("sql",), **lists)
    assert (decision.actions, decision.requeue) == ([], [])
    assert decision.statuses[0].as_status() == {
        "name": "sql", "desired": 3, "loaded": 3, "pods": list(PODS), "bytes": 100,
    }  # fmt: skip


def test_an_engine_that_was_restarted_gets_it_again() -> None:
    decision = decided(adapter(), known=("sql",), p0=[info()], p2=[info()])
    assert decision.actions == [LoadAdapter("p1", "sql", "/sql")]


def test_two_of_three_engines_have_it_and_keep_it() -> None:
    decision = decided(adapter(replicas=2))
    pods = {action.pod for action in decision.actions}
    assert len(pods) == 2
    kept = decided(adapter(replicas=2), known=("sql",), p0=[info()], p1=[info()])
    assert kept.actions == []


def test_a_surplus_copy_goes_only_when_all_others_are_there() -> None:
    loading = decided(adapter(replicas=2), known=("sql",), p0=[info()], p1=[info(state="loading")], p2=[info()])
    assert not [action for action in loading.actions if isinstance(action, UnloadAdapter)] or all(
        action.pod == "p1" for action in loading.actions
    )
    done = decided(adapter(replicas=2), known=("sql",), **{pod: [info()] for pod in PODS})
    assert [type(action) for action in done.actions] == [UnloadAdapter]


def test_another_path_replaces_the_adapter_in_place() -> None:
    lists = {pod: [info(path="/old")] for pod in PODS}
    decision = decided(adapter(), known=("sql",), **lists)
    assert decision.actions == [LoadAdapter(pod, "sql", "/sql") for pod in PODS]
    assert decision.statuses[0].pods == PODS, "the old one answers meanwhile"


def test_a_failure_is_reported_in_the_engines_words_and_tried_again_later() -> None:
    failed = info(state="failed", reason="rank 64 is more than 16")
    decision = decided(adapter(), p0=[failed], p1=[info()], p2=[info()])
    assert decision.actions == [LoadAdapter("p0", "sql", "/sql")]
    assert decision.requeue == [RETRY]
    [status] = decision.statuses
    assert status.failed
    assert status.reason == "p0: rank 64 is more than 16"
    assert status.pods == ("p1", "p2")


def test_a_failed_replacement_leaves_the_old_one() -> None:
    lists = {pod: [info(path="/old", reason="NaN in /sql")] for pod in PODS}
    decision = decided(adapter(), known=("sql",), **lists)
    [status] = decision.statuses
    assert (status.failed, status.pods) == (True, PODS)
    assert not [action for action in decision.actions if isinstance(action, UnloadAdapter)]


def test_only_what_the_operator_loaded_is_unloaded() -> None:
    lists = {"p0": [info("sql"), info("own")]}
    decision = decided(known=("sql",), **lists)
    assert decision.actions == [UnloadAdapter("p0", "sql")]
    assert decision.requeue == [SOON]
    assert [(status.name, status.desired, status.pods) for status in decision.statuses] == [("sql", 0, ("p0",))]
    assert decided(known=("sql",), p0=[info("own")]).statuses == []


def test_too_few_engines_are_named() -> None:
    declared = [adapter(replicas=2)]
    decision = decide(declared, (), {"p0": [info()]}, {})
    [status] = decision.statuses
    assert (status.desired, status.pods, status.reason) == (2, ("p0",), "1 engines respond")


def test_an_engine_that_does_not_respond_keeps_its_copies_and_nothing_moves() -> None:
    declared = [adapter(replicas=2), adapter("new", replicas=2)]
    lists = {"p1": [info(), info("new")], "p2": []}
    decision = decide(declared, ("sql", "new"), lists, {}, {"p0": ["sql"]})
    assert decision.actions == [LoadAdapter("p2", "new", "/new")]
    assert [status.pods for status in decision.statuses] == [("p0", "p1"), ("p1",)]
    surplus = decide(declared[:1], ("sql",), {pod: [info()] for pod in ("p1", "p2")}, {}, {"p0": ["sql"]})
    assert not [action for action in surplus.actions if isinstance(action, LoadAdapter)]
    everywhere = decide([adapter()], (), {"p1": [info()]}, {}, {"p0": []})
    assert (everywhere.actions, everywhere.statuses[0].reason) == ([], "1 engines do not respond")


def test_the_reason_of_a_replacement_that_was_taken_back_is_no_failure() -> None:
    lists = {pod: [info(reason="NaN in /new")] for pod in PODS}
    decision = decided(adapter(), known=("sql",), **lists)
    assert (decision.actions, decision.statuses[0].reason, decision.statuses[0].failed) == ([], "", False)


def test_one_that_is_only_registered_is_read_when_it_is_to_be_preloaded() -> None:
    lists = {pod: [info(state="registered")] for pod in PODS}
    assert decided(adapter(preload=False), known=("sql",), **lists).actions == []
    assert decided(adapter(), known=("sql",), **lists).actions == [LoadAdapter(pod, "sql", "/sql") for pod in PODS]


def test_pinning_is_changed_where_the_adapter_is() -> None:
    lists = {pod: [info()] for pod in PODS}
    decision = decided(adapter(pinned=True), known=("sql",), **lists)
    assert decision.actions == [LoadAdapter(pod, "sql", "/sql", True) for pod in PODS]
    assert decision.statuses[0].reason == ""


def test_copies_for_which_no_memory_has_room_are_named() -> None:
    state = msgspec.structs.replace(engine_state({"metadata": {"labels": {}}}), max_adapters=1)
    declared = [adapter("a", replicas=2), adapter("b", replicas=2)]
    before = decide(declared, (), {"p0": [], "p1": []}, {"p0": state, "p1": state})
    assert sorted(action.name for action in before.actions) == ["a", "b"]
    lists = {action.pod: [info(action.name)] for action in before.actions}
    after = decide(declared, ("a", "b"), lists, {"p0": state, "p1": state})
    assert after.actions == []
    assert {status.reason for status in after.statuses} == {
        "host memory of the engines has no room for more copies; raise spec.engine.lora.maxCPU"
    }


def test_without_engines_no_adapter_is_ready() -> None:
    decision = decide([adapter()], (), {}, {})
    [status] = decision.statuses
    assert (status.desired, status.pods, status.reason) == (1, (), "0 engines respond")
