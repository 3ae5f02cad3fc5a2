"""Scaling down: engines leave the routers first, and only then is their Deployment lowered.

A ReplicaSet chooses the pods to delete itself: those that are not ready, then those with the lowest deletion cost. So
the engines with the fewest requests get that cost (the mark), are drained, and once they report it the replica count
follows. The mark is made before anything drains: an operator killed anywhere finds it, and takes back in what is to
stay after all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from blade_operator.model import pods as podutil
from blade_operator.model.groups import is_member
from blade_operator.model.objects import Object, Ref
from blade_operator.model.observed import Observed
from blade_operator.model.plan import DrainPod
from blade_protocol.labels import DELETION_COST, DRAINING_SINCE, ROLE, ROLE_ENGINE, STANDBY_SINCE, WOKEN_AT
from blade_protocol.state import EngineState

DRAIN_REPORT_TIMEOUT = 10.0
"""Seconds an engine has to report that it drains; then it is deleted all the same, and drains on its SIGTERM."""
HANDOVER_TIMEOUT = 5.0
"""Seconds in which other engines load the adapters that only a leaving one has; then it drains all the same."""
DRAIN_REQUEUE = 0.2
"""Seconds until an engine that was asked to drain, or to take requests again, is queried."""
MAX_DRAIN_REQUEUE = 10.0
"""The same of one that was asked long ago, and of one that does not respond."""
LOWEST_COST = -1_000_000
"""Deletion cost of a leaving engine without requests; each request adds one. Other pods have 0."""
STANDBY_COST = "1"
"""Deletion cost of an engine that stands by and stays: it is not ready, as those that start, of which it costs more."""
_KEPT = (STANDBY_SINCE, WOKEN_AT)
"""Annotations that say where an engine stands, whether it leaves or not."""


@dataclass(slots=True)
class ScaleDown:
    """The replica counts to apply now, and what comes before those that are still held back."""

    replicas: dict[str, int]
    """By revision: the planned counts, but as they are where an engine has yet to leave the routers."""
    marks: list[Object] = field(default_factory=list)
    """Pods to apply: only what the operator says of them."""
    actions: list[DrainPod] = field(default_factory=list)
    requeue: list[float] = field(default_factory=list)
    """Seconds until an engine is queried that ``actions`` were for."""


def scale_down(
    planned: Mapping[str, int], current: Mapping[str, int], observed: Observed, now: datetime, *, waits: bool = False
) -> ScaleDown:
    """How to get from the replica counts ``current`` of the Deployments to ``planned`` (both by revision).

    ``waits``: no engine that is ready begins to leave now.
    """
    result = ScaleDown(dict(planned))
    for revision, count in planned.items():
        pods = [
            pod
            for pod in observed.pods
            if podutil.role(pod) == ROLE_ENGINE and podutil.revision(pod) == revision and podutil.is_active(pod)
        ]
        going = leaving(pods, len(pods) - count, observed.engines)
        names = {pod["metadata"]["name"] for pod in going}
        for pod in pods:
            if pod["metadata"]["name"] not in names and podutil.draining_since(pod):
                _take_back(pod, observed, now, result)
        if count < current.get(revision, 0):
            off = [_is_off(pod, observed, now, result, waits) for pod in going]  # a step for each of them
            result.replicas[revision] = count if all(off) else current[revision]
    return result


def leaving(pods: Sequence[Object], surplus: int, engines: Mapping[str, EngineState]) -> list[Object]:
    """The pods a ReplicaSet would delete, were they marked: unready ones, marked ones, those that stand by, then those
    with few requests; of these the ones whose prefix cache has saved the least."""

    def order(pod: Object) -> tuple[bool, bool, bool, int, int, str]:
        return (
            podutil.is_ready(pod),
            not podutil.draining_since(pod),
            not podutil.stands_by(pod),
            requests(pod, engines),
            cached_tokens(pod, engines),
            pod["metadata"]["name"],
        )

    return sorted(pods, key=order)[: max(0, surplus)]


def requests(pod: Object, engines: Mapping[str, EngineState]) -> int:
    """Requests that the engine in ``pod`` runs or queues."""
    state = engines.get(pod["metadata"]["name"])
    return state.running + state.waiting if state else 0


def cached_tokens(pod: Object, engines: Mapping[str, EngineState]) -> int:
    """Tokens that its prefix cache saved the engine from computing: what others have to compute once it is gone."""
    state = engines.get(pod["metadata"]["name"])
    return state.cached_tokens_total if state else 0


def _is_off(pod: Object, observed: Observed, now: datetime, result: ScaleDown, waits: bool) -> bool:
    """Whether no router sends ``pod`` anything new; else the next step towards that is in ``result``.

    One that does not respond cannot be drained before its SIGTERM. Nor can one that may not be marked.
    """
    since = podutil.draining_since(pod)
    if not podutil.is_ready(pod):
        return True
    if not since and waits:
        return False
    if not since:
        stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        cost = LOWEST_COST + requests(pod, observed.engines)
        result.marks.append(marked(pod, {DELETION_COST: str(cost), DRAINING_SINCE: stamp}))
        return Ref.of(pod) in observed.rejected
    state = observed.engines.get(pod["metadata"]["name"])
    if state is None or state.draining or podutil.age(since, now) > DRAIN_REPORT_TIMEOUT:
        return True
    if podutil.age(since, now) <= HANDOVER_TIMEOUT and _has_last_copies(pod, observed):
        result.requeue.append(DRAIN_REQUEUE)
        return False
    result.actions.append(DrainPod(pod["metadata"]["name"]))
    result.requeue.append(DRAIN_REQUEUE)
    return False


def _has_last_copies(pod: Object, observed: Observed) -> bool:
    """Whether only ``pod`` answers requests for some LoRA adapter of the spec, while others could."""
    declared = {adapter["name"] for adapter in observed.service["spec"].get("adapters") or ()}
    others: set[str] | None = None
    for each in observed.pods:
        if (
            podutil.is_ready(each)
            and not podutil.draining_since(each)
            and not podutil.standby_since(each)
            and each["metadata"]["name"] in observed.adapters
        ):
            others = (others or set()) | _answering(each, observed)
    return others is not None and bool(_answering(pod, observed) & declared - others)


def _answering(pod: Object, observed: Observed) -> set[str]:
    """Names of the adapters for which the engine in ``pod`` answers requests."""
    listed = observed.adapters.get(pod["metadata"]["name"], ())
    return {info.name for info in listed if info.state in ("loaded", "registered")}


def _take_back(pod: Object, observed: Observed, now: datetime, result: ScaleDown) -> None:
    """It stays after all: the mark goes when the engine reports that it takes requests.

    Until then it is asked again and again, ever more seldom: it may not respond for as long as it lives. One that stood
    by goes on doing so.
    """
    if podutil.stands_by(pod):
        result.marks.append(marked(pod, {DELETION_COST: STANDBY_COST}))
        return
    state = observed.engines.get(pod["metadata"]["name"])
    if state is not None and not state.draining:
        result.marks.append(marked(pod, {}))
        return
    result.actions.append(DrainPod(pod["metadata"]["name"], draining=False))
    waited = podutil.age(podutil.draining_since(pod), now)
    patience = MAX_DRAIN_REQUEUE if state is None else max(DRAIN_REQUEUE, waited / 10)
    result.requeue.append(min(patience, MAX_DRAIN_REQUEUE))


def marked(pod: Object, annotations: Mapping[str, str], without: Collection[str] = ()) -> Object:
    """All that the operator says of ``pod``: an apply takes back what it does not repeat.

    What says where the engine stands is kept, but for the annotations ``without``.
    """
    metadata: Object = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    if is_member(pod):
        metadata["labels"] = {ROLE: ROLE_ENGINE}
    own = pod["metadata"].get("annotations") or {}
    said = {name: own[name] for name in _KEPT if name in own and name not in without} | dict(annotations)
    if said:
        metadata["annotations"] = said
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
