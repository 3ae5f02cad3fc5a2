"""Revisions for their user: history, going back with the very same pods, and how a rollout goes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.cli import history
from blade_operator.cli.errors import CommandError
from blade_operator.model.objects import Object, Ref
from blade_operator.render import Defaults
from blade_protocol.labels import CHANGE_CAUSE, RESTARTED_AT


def revisions(cluster: MiniCluster) -> list[Object]:
    return [obj for ref, obj in cluster.objects.items() if ref.kind == "ControllerRevision"]


def write(cluster: MiniCluster, edited: Object | None) -> None:
    """What an API server does with what a command writes."""
    assert edited is not None
    changed = edited["spec"] != cluster.service["spec"]
    cluster.service = edited
    cluster.service["metadata"]["generation"] += changed


@pytest.fixture
def cluster() -> MiniCluster:
    """Three revisions: of the plain spec, then with 8 and with 16 requests at once."""
    made = MiniCluster(service(annotations={CHANGE_CAUSE: "first"}))
    made.converge()
    for count in (8, 16):
        made.edit(engine={"maxNumSeqs": count, "deterministic": True}, security={"engineToken": False})
        made.service["metadata"]["annotations"] = {CHANGE_CAUSE: f"{count} at once"}
        made.converge()
    return made


def rows(cluster: MiniCluster) -> list[dict[str, str]]:
    return [dict(row) for row in history.history(cluster.service, revisions(cluster))]


def test_history_has_numbers_states_and_causes(cluster: MiniCluster) -> None:
    found = rows(cluster)
    assert [(row["REVISION"], row["STATE"], row["CHANGE-CAUSE"]) for row in found] == [
        ("1", "-", "first"),
        ("2", "-", "8 at once"),
        ("3", "current, stable", "16 at once"),
    ]


def test_undo_goes_back_to_the_spec_of_before_and_to_the_very_same_pods(cluster: MiniCluster) -> None:
    [_, second, _] = rows(cluster)
    cluster.defaults = Defaults(engine_image="engine:2", router_image="operator:1")  # a release that renders otherwise
    revision = history.find(cluster.service, revisions(cluster), None)
    write(cluster, history.undone(cluster.service, revision))
    cluster.converge()
    assert cluster.service["spec"]["engine"]["maxNumSeqs"] == 8
    assert cluster.service["status"]["revision"]["current"] == second["NAME"]
    assert [row["REVISION"] for row in rows(cluster)] == ["1", "3", "4"]
    assert rows(cluster)[-1]["CHANGE-CAUSE"] == "8 at once"


def test_undo_to_a_number_takes_out_what_was_not_set_then_and_leaves_the_rest(cluster: MiniCluster) -> None:
    [first, *_] = rows(cluster)
    cluster.edit(replicas=3, router={"replicas": 2})
    write(cluster, history.undone(cluster.service, history.find(cluster.service, revisions(cluster), 1)))
    cluster.converge()
    spec = cluster.service["spec"]
    assert "maxNumSeqs" not in spec["engine"]
    assert "engineToken" not in spec.get("security", {})
    assert (spec["replicas"], spec["router"]["replicas"]) == (3, 2)
    assert cluster.service["status"]["revision"]["current"] == first["NAME"]
    assert history.undone(cluster.service, history.find(cluster.service, revisions(cluster), 4)) is None


def test_undo_of_a_restart_is_the_revision_before_it(cluster: MiniCluster) -> None:
    before = cluster.service["status"]["revision"]["current"]
    write(cluster, history.restarted(cluster.service, "2026-01-02T00:00:00Z"))
    assert history.progress(cluster.service, revisions(cluster)).message.startswith("Waiting for the operator")
    cluster.converge()
    assert history.progress(cluster.service, revisions(cluster)).done
    assert cluster.service["status"]["revision"]["current"] != before
    write(cluster, history.undone(cluster.service, history.find(cluster.service, revisions(cluster), None)))
    cluster.converge()
    assert cluster.service["status"]["revision"]["current"] == before
    assert RESTARTED_AT not in cluster.service["metadata"]["annotations"]


def test_a_revision_of_an_earlier_release_is_kept_as_it_is_and_says_that_it_has_no_spec(cluster: MiniCluster) -> None:
    for obj in revisions(cluster):
        del obj["data"]["service"]
    plan = cluster.plan()
    assert [obj["kind"] for obj in plan.apply if "data" in obj and "service" in obj["data"]] == []
    cluster.converge()  # what a ControllerRevision holds cannot be changed
    assert all("service" not in obj["data"] for obj in revisions(cluster))
    with pytest.raises(CommandError, match="revision 2 was made by a release that did not keep its spec: apply"):
        history.undone(cluster.service, history.find(cluster.service, revisions(cluster), None))


def test_mistakes_are_named(cluster: MiniCluster) -> None:
    with pytest.raises(CommandError, match=r"there is no revision 9; there are 1, 2, 3 \(see rollout history\)"):
        history.find(cluster.service, revisions(cluster), 9)
    with pytest.raises(CommandError, match="there is no earlier revision"):
        history.find(cluster.service, revisions(cluster)[-1:], None)
    paused = history.paused(cluster.service, True)
    with pytest.raises(CommandError, match="already paused"):
        history.paused(paused, True)
    with pytest.raises(CommandError, match="not paused"):
        history.paused(cluster.service, False)
    with pytest.raises(CommandError, match="resume it first"):
        history.undone(paused, revisions(cluster)[0])
    assert history.paused(paused, False)["spec"]["rollout"]["paused"] is False


def test_after_an_automatic_rollback_undo_writes_the_spec_of_what_runs(cluster: MiniCluster) -> None:
    status = cluster.service["status"]["revision"]
    [first, _, third] = rows(cluster)
    cluster.service["status"]["revision"] = {**status, "stable": first["NAME"], "failed": third["NAME"]}
    assert history.is_rolled_back(cluster.service)
    assert history.name_of(history.find(cluster.service, revisions(cluster), None)) == first["NAME"]


@pytest.mark.parametrize(
    ("progressing", "done", "failed", "words"),
    [
        ({"status": "False", "reason": "Complete"}, True, False, "successfully rolled out"),
        ({"status": "False", "reason": "ProgressDeadlineExceeded", "message": "no"}, False, True, "Exceeded: no"),
        ({"status": "False", "reason": "Stalled", "message": "why"}, False, True, "Stalled: why"),
        ({"status": "Unknown", "reason": "Paused", "message": "waits"}, False, False, "waits (Paused)"),
        ({"status": "True", "reason": "Updating", "message": "1 of 2"}, False, False, "1 of 2 (Updating)"),
        ({}, False, False, "no status yet"),
    ],
)
def test_progress_is_that_of_the_condition(
    cluster: MiniCluster, progressing: dict[str, Any], done: bool, failed: bool, words: str
) -> None:
    obj = copy.deepcopy(cluster.service)
    obj["status"]["conditions"] = [{"type": "Progressing", **progressing}] if progressing else []
    found = history.progress(obj)
    assert (found.done, found.failed) == (done, failed)
    assert words in found.message
    obj["metadata"]["generation"] += 1
    assert history.progress(obj).message == "Waiting for the operator to take up the spec ..."


def test_what_a_revision_keeps_is_in_its_data_from_the_start(cluster: MiniCluster) -> None:
    name = f"qwen-engine-{cluster.service['status']['revision']['current']}"
    kept = cluster.objects[Ref("ControllerRevision", "team", name)]["data"]["service"]
    assert {*kept["spec"]} == {"model", "engine", "check", "security", "rollout"}
    assert (kept["spec"]["security"], kept["spec"]["rollout"]) == ({"engineToken": False}, {"drainTimeout": "10m"})
