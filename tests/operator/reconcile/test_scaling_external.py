"""Mode External: the operator follows ``spec.replicas`` and says who seems to set it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from operator_support.scaled import Scaled

from blade_operator.reconcile.scaling.external import FLAP_SECONDS, IDLE_SECONDS


@pytest.fixture
def cluster() -> Scaled:
    return Scaled({"mode": "External"}, replicas=2)


def set_replicas(cluster: Scaled, *counts: int, seconds: float = 30) -> None:
    for count in counts:
        cluster.now += timedelta(seconds=seconds)
        cluster.edit(replicas=count)
        for _ in range(3):
            cluster.bring_up()


def test_replicas_are_followed_and_their_changes_noted(cluster: Scaled) -> None:
    set_replicas(cluster, 5)
    assert (cluster.replicas, cluster.scaling["replicas"]) == (5, 5)
    assert cluster.condition == ("True", "External")
    [change] = cluster.scaling["changes"]
    assert change.endswith("Z 2 -> 5: spec.replicas was set")
    assert not any("External" in event.message for event in cluster.events)


def test_nothing_is_written_while_nothing_changes(cluster: Scaled) -> None:
    set_replicas(cluster, 5)
    before = cluster.statuses
    cluster.steps(2 * IDLE_SECONDS, every=100)
    assert cluster.statuses == before


def test_nobody_who_drives_is_noticed(cluster: Scaled) -> None:
    cluster.step(IDLE_SECONDS / 2)
    assert cluster.condition == ("True", "External")
    cluster.step(IDLE_SECONDS)
    assert cluster.condition == ("Unknown", "ExternalIdle")
    assert "HorizontalPodAutoscaler" in cluster.message
    set_replicas(cluster, 3)
    assert cluster.condition == ("True", "External")


def test_two_that_pull_in_different_directions_are_noticed(cluster: Scaled) -> None:
    set_replicas(cluster, 3, 4, 3)
    assert cluster.condition == ("True", "External")
    set_replicas(cluster, 4, 3)
    assert cluster.condition == ("False", "SeveralDrivers")
    cluster.step(FLAP_SECONDS + 60)
    assert cluster.condition == ("True", "External")


def test_ups_and_downs_of_a_day_are_none(cluster: Scaled) -> None:
    set_replicas(cluster, 3, 4, 3, 4, 3, 4, seconds=FLAP_SECONDS)
    assert cluster.condition == ("True", "External")
