"""The status of speculative decoding: what drafts bring, rounded, and when they bring nothing."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from operator_support.mini_cluster import MiniCluster, engine_state, memory, service
from operator_support.status import condition, reconciled_status

from blade_protocol.state import SpeculationCounts

DRAFT = {"method": "draft", "draftModel": {"uri": "file:///models/small"}}
HEAD = {"method": "eagle3", "draftModel": {"uri": "file:///models/head"}}
MTP = {"method": "mtp"}
KIND = "SpeculationEffective"


def running(replicas: int = 1, speculative: dict[str, Any] | None = DRAFT) -> MiniCluster:
    engine = {} if speculative is None else {"speculative": speculative}
    cluster = MiniCluster(service({"replicas": replicas, "engine": engine}))
    cluster.converge()
    return cluster


def count(cluster: MiniCluster, *counts: tuple[int, int], failed: bool = False) -> None:
    """Have the engines, in order, report so many draft tokens and accepted ones."""
    for pod, (drafted, accepted) in zip(cluster.engine_pods, counts, strict=True):
        said = SpeculationCounts(drafts=drafted, draft_tokens=drafted, accepted_tokens=accepted, failed=failed)
        cluster.engines[pod["metadata"]["name"]] = msgspec.structs.replace(engine_state(pod), speculation=said)


def kinds(status: dict[str, Any]) -> set[str]:
    return {entry["type"] for entry in status["conditions"]}


def test_engines_are_added_up_and_figures_rounded() -> None:
    cluster = running(2)
    count(cluster, (40_000, 30_000), (20_000, 9_000))
    status = reconciled_status(cluster)
    assert status["speculation"] == {"drafted": 50_000, "acceptance": "0.6"}
    assert condition(status, KIND)[:2] == ("True", "Accepted")
    assert condition(status, "Ready")[0] == "True"


def test_only_changes_that_mean_something_are_written() -> None:
    cluster = running()
    count(cluster, (100_000, 70_000))
    reconciled_status(cluster)
    for drafted, accepted in ((110_000, 86_900), (150_000, 91_500), (199_999, 140_000)):
        count(cluster, (drafted, accepted))
        assert cluster.reconcile().status is None
    cluster.engines.clear()
    assert cluster.reconcile().status is None
    count(cluster, (200_000, 119_000))
    assert reconciled_status(cluster)["speculation"] == {"drafted": 200_000, "acceptance": "0.6"}


def test_a_few_drafts_say_nothing() -> None:
    cluster = running()
    count(cluster, (999, 0))
    status = reconciled_status(cluster)
    assert status["speculation"] == {"drafted": 0}
    assert KIND not in kinds(status)


@pytest.mark.parametrize("speculative", [None, {"method": "ngram"}])
def test_without_speculation_or_a_report_the_status_says_nothing(speculative: dict[str, Any] | None) -> None:
    cluster = running(speculative=speculative)
    status = reconciled_status(cluster)
    assert "speculation" not in status
    assert KIND not in kinds(status)


def test_a_draft_model_that_fails_is_named_with_the_field_and_one_event() -> None:
    cluster = running(2)
    one, two = cluster.engine_pods
    count(cluster, (5_000, 4_000), (5_000, 4_000))
    reconciled_status(cluster)
    cluster.events.clear()
    count(cluster, (5_000, 4_000), (5_000, 4_000), failed=True)
    cluster.engines[one["metadata"]["name"]] = engine_state(one)
    status = reconciled_status(cluster)
    found = condition(status, KIND)
    assert found[:2] == ("False", "DraftModelFailed")
    assert found[2].startswith(f"pod {two['metadata']['name']}: the draft model computed NaN")
    assert "choose another spec.engine.speculative.draftModel" in found[2]
    assert condition(status, "Ready")[0] == "True"
    assert [(event.type, event.reason) for event in cluster.events] == [("Warning", "DraftModelFailed")]
    cluster.engines.clear()
    assert cluster.reconcile().status is None
    count(cluster, (0, 0), (0, 0))  # both were replaced
    assert KIND not in kinds(reconciled_status(cluster))


@pytest.mark.parametrize(
    ("speculative", "failed", "low"),
    [
        (HEAD, "the draft head computed NaN, .* spec.engine.dtype float32", "trained for this very model, or remove"),
        (MTP, "prediction layers computed NaN, .* another spec.engine.speculative.method", "lower .*steps, or remove"),
        ({"method": "ngram"}, "", "choose another spec.engine.speculative.method, or remove"),
    ],
)
def test_messages_name_what_makes_the_drafts(speculative: dict[str, Any], failed: str, low: str) -> None:
    cluster = running(speculative=speculative)
    count(cluster, (10_000, 900))
    assert re.search(low, condition(reconciled_status(cluster), KIND)[2])
    if failed:
        count(cluster, (10_000, 9_000), failed=True)
        found = condition(reconciled_status(cluster), KIND)
        assert found[:2] == ("False", "DraftModelFailed")
        assert re.search(failed, found[2])


def test_low_acceptance_is_a_condition_until_it_is_twice_as_high() -> None:
    cluster = running()
    count(cluster, (10_000, 900))
    status = reconciled_status(cluster)
    assert condition(status, KIND)[:2] == ("False", "LowAcceptance")
    assert condition(status, "Degraded")[0] == "False"
    count(cluster, (10_000, 1_900))
    assert condition(reconciled_status(cluster), KIND)[:2] == ("False", "LowAcceptance")
    count(cluster, (10_000, 2_100))
    assert condition(reconciled_status(cluster), KIND)[:2] == ("True", "Accepted")


def test_what_users_write_into_the_status_stops_nothing() -> None:
    cluster = running()
    count(cluster, (100_000, 70_000))
    reconciled_status(cluster)
    cluster.service["status"]["speculation"] = {"acceptance": "much"}
    assert reconciled_status(cluster)["speculation"] == {"drafted": 100_000, "acceptance": "0.7"}


def test_an_invalid_spec_keeps_what_is_known() -> None:
    cluster = running()
    count(cluster, (100_000, 70_000))
    before = reconciled_status(cluster)
    cluster.service["spec"]["engine"]["speculative"]["steps"] = 99
    status = reconciled_status(cluster)
    assert condition(status, "SpecValid")[0] == "False"
    assert status["speculation"] == before["speculation"]
    assert condition(status, KIND) == condition(before, KIND)


def test_the_drafts_memory_is_in_the_fit() -> None:
    cluster = running()
    [pod] = cluster.engine_pods
    plan = msgspec.structs.replace(memory(), draft=100 << 20)
    cluster.engines[pod["metadata"]["name"]] = engine_state(pod, plan)
    cluster.service["status"].pop("fit", None)
    assert reconciled_status(cluster)["fit"]["draft"] == "100Mi"
