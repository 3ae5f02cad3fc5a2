"""What the status says of engines on standby: they are no failure, and part of what there is to be."""

from __future__ import annotations

from operator_support.pooled import POOLED, Pooled


def test_that_an_engine_on_standby_is_not_ready_is_no_failure() -> None:
    cluster = Pooled()
    [spare] = [pod for pod in cluster.engine_pods if pod["metadata"]["name"] in cluster.standing_by]
    spare["status"]["conditions"][0]["lastTransitionTime"] = "2025-01-01T00:00:00+00:00"
    cluster.reconcile()
    assert cluster.condition("Degraded")[0] == "False"
    assert cluster.condition("Progressing")[:2] == ("False", "Complete")
    assert cluster.phase == "Ready"


def test_a_pool_that_is_not_full_yet_is_progress() -> None:
    cluster = Pooled()
    cluster.edit(scaling=POOLED | {"standby": 2})
    cluster.reconcile()
    assert cluster.condition("Progressing") == ("True", "Starting", "1 of 2 engines on standby")
    cluster.settle()
    assert cluster.condition("Progressing")[:2] == ("False", "Complete")


def test_a_rollout_counts_what_stands_by_too() -> None:
    cluster = Pooled()
    cluster.edit(engine={"maxNumSeqs": 8})
    cluster.reconcile()
    cluster.run_controllers()
    cluster.reconcile()
    revision = cluster.service["status"]["revision"]["current"]
    assert cluster.condition("Progressing")[2] == f"1 of 2 engines run revision {revision}, 2 an earlier one"
