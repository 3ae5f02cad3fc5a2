"""The progress deadline: when a new revision is given up, and what runs in its place.

What is known of a change is in ``status.revision``: the last revision that was ready, when the current one last made
progress, and whether it was rolled back. So the decision is the same whenever it is made again, and the spec is never
written (docs/decisions/0031-rollback-without-writing-the-spec.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.model.rollout import RolloutState, last_state
from blade_operator.spec.parse import LLMService
from blade_operator.spec.quantity import parse_duration
from blade_protocol.fetch import FetchProgress
from blade_protocol.labels import ROLE_ENGINE


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a service, as far as a deadline depends on them."""

    ready: int
    """Of the current revision."""
    earlier: bool
    """Some of another revision run or start."""
    draining: bool
    """Some of another revision terminate: the new ones may have to wait for their devices."""
    downloading: bool
    """More of the model arrives at one of the current revision now."""
    downloaded: bool
    """One of the current revision has the whole model."""


def count_engines(pods: Sequence[Object], downloads: Mapping[str, FetchProgress], current: str) -> Engines:
    """What there is of the ``current`` revision and of others among ``pods``."""
    engines = [pod for pod in pods if podutil.role(pod) == ROLE_ENGINE and not podutil.is_finished(pod)]
    mine = [pod for pod in engines if podutil.revision(pod) == current]
    others = [pod for pod in engines if podutil.revision(pod) != current]
    arriving = [downloads[name].bytes_per_second for pod in mine if (name := pod["metadata"]["name"]) in downloads]
    return Engines(
        ready=sum(map(podutil.is_ready, mine)),
        earlier=not all(map(podutil.is_terminating, others)),
        draining=any(map(podutil.is_terminating, others)),
        downloading=any(arriving),
        downloaded=any(_has_fetched(pod) for pod in mine),
    )


def _has_fetched(pod: Object) -> bool:
    fetch = podutil.container(pod, podutil.FETCH)
    return fetch is not None and fetch.termination is not None and fetch.termination.exit_code == 0


def judge(
    service: LLMService,
    status: Object,
    current: str,
    engines: Engines,
    known: Collection[str],
    now: datetime,
    *,
    begun: bool,
    held: bool,
) -> RolloutState:
    """Where the change to the ``current`` revision stands.

    Args:
        status: the status of the service as it was written last.
        known: revisions whose pods could be made again.
        begun: engines of the current revision have been made.
        held: the change waits.
    """
    written = status.get("revision") or {}
    before = last_state(written)
    if before.target != current:
        before = RolloutState(stable=before.stable)
    replicas, rollout = service.spec.replicas, service.spec.rollout
    if replicas and engines.ready >= replicas and not engines.earlier:
        return RolloutState(target=current, stable=current)
    automatic = rollout.rollback == "Automatic" and before.stable in known and before.stable != current
    if before.failed and automatic:
        return RolloutState(target=before.stable, stable=before.stable, failed=current)
    state = RolloutState(target=current, stable=before.stable)
    # Where nothing is replaced, what keeps engines from being ready has conditions of its own.
    first = not before.stable and not engines.earlier
    # Time that counts goes on: a rollback that an interrupted operator began takes the engines away first.
    begun = begun or bool(before.progressed_at)
    if first or before.stable == current or not replicas or not begun or held or engines.draining:
        return state
    model = status.get("model") or {}
    # Once for a revision: the status says later that all of the model is there.
    arrived = engines.downloaded and model.get("downloaded", 0) < model.get("bytes", 0)
    progressed = engines.ready > before.most_ready or arrived
    since = podutil.parse_time(before.progressed_at)
    over = since is not None and (now - since).total_seconds() >= parse_duration(rollout.progress_deadline)
    if since is None or since > now or progressed or (over and engines.downloading):
        stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return replace(state, progressed_at=stamp, most_ready=max(engines.ready, before.most_ready))
    state = replace(state, progressed_at=before.progressed_at, most_ready=before.most_ready)
    if not over:
        return state
    if automatic:
        return RolloutState(target=before.stable, stable=before.stable, failed=current, exceeded=True)
    return replace(state, exceeded=True)
