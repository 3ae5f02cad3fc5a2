"""The whole control loop's decision for one service: what there is → what to do now. Pure, and the same at any time.

Everything needed is in the objects, so an operator that was killed anywhere goes on where it stopped. The spec is never
written. While a spec is invalid everything stays as it is and only the status says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from blade_operator import pods as read
from blade_operator.objects import Object, Ref
from blade_operator.observed import Observed
from blade_operator.ownership import own_pods, without_remains
from blade_operator.plan import EventRecord, Plan
from blade_operator.render import Defaults, engine_deployment, engine_objects, router_objects, service_objects
from blade_operator.render.meta import router_name
from blade_operator.revisions import find_revisions
from blade_operator.rollout import RevisionPods, sizes
from blade_operator.spec.errors import SpecError
from blade_operator.spec.parse import LLMService, parse_service
from blade_operator.status import Situation, build_status, transitions
from blade_operator.status.download import is_downloading
from blade_operator.writes import due, unwanted
from blade_protocol.labels import REVISION, ROLE, ROLE_ENGINE

RETRY_UNKNOWN = 10.0
"""Seconds until an engine that could not be asked is asked again."""
DOWNLOAD_LOOK = 5.0
"""Seconds until a download is asked again how far it is."""


def reconcile(observed: Observed, now: datetime, defaults: Defaults | None = None) -> Plan:
    """Everything to do now for one service. An empty plan means all is as declared."""
    if "deletionTimestamp" in observed.service["metadata"]:
        return Plan()
    observed = without_remains(observed)
    try:
        service = parse_service(observed.service)
    except SpecError as error:
        return _invalid(observed, error, now)
    defaults = defaults or Defaults()
    revisions = find_revisions(service, observed.revisions, defaults)
    deployments = _engine_deployments(observed)
    planned = _sizes(service, revisions.current, deployments, observed)
    desired = [*service_objects(service, defaults), *engine_objects(service), *revisions.desired]
    events: list[EventRecord] = []
    for revision, replicas in planned.items():
        # A revision whose ControllerRevision someone deleted is still scaled, with the template it runs with.
        template = revisions.templates.get(revision) or deployments[revision]["spec"]["template"]
        desired.append(deployment := engine_deployment(service, revision, template, replicas))
        if Ref.of(deployment) not in observed.rejected:
            events += _scaled(revision, deployments.get(revision), replicas)
    desired += router_objects(service, defaults)
    removed = [Ref.of(deployments[revision]) for revision in deployments if revision not in planned]
    situation = Situation(
        obj=observed.service,
        service=service,
        invalid=None,
        pods=own_pods(observed),
        router_service=_router_service(observed, router_name(service)),
        engines=observed.engines,
        downloads=observed.downloads,
        deployments=observed.deployments,
        rejected=observed.rejected,
        current=revisions.current,
        previous=revisions.previous,
        outdated=revisions.outdated,
        old_deployments=any(revision != revisions.current for revision in planned),
    )
    there = {Ref.of(obj): obj for obj in _children(observed)}
    keep = {*planned, revisions.current}
    return _finish(
        situation,
        now,
        apply=due(desired, there, observed.pods, now),
        delete=[*removed, *revisions.expired(keep), *unwanted(desired, there.values(), service.uid)],
        events=events,
    )


def _invalid(observed: Observed, error: SpecError, now: datetime) -> Plan:
    name = observed.service["metadata"]["name"]
    before = (observed.service.get("status") or {}).get("revision", {})
    situation = Situation(
        obj=observed.service,
        service=None,
        invalid=error,
        pods=own_pods(observed),
        router_service=_router_service(observed, f"{name}-router"),
        engines=observed.engines,
        deployments=observed.deployments,
        current=before.get("current", ""),
        previous=before.get("previous", ""),
    )
    return _finish(situation, now, apply=[], delete=[], events=[])


def _finish(
    situation: Situation, now: datetime, *, apply: list[Object], delete: list[Ref], events: list[EventRecord]
) -> Plan:
    status = build_status(situation, now)
    changed = status != situation.before
    unknown = [pod for pod in situation.engine_pods if read.is_ready(pod)]
    unknown = [pod for pod in unknown if pod["metadata"]["name"] not in situation.engines]
    again = [RETRY_UNKNOWN] * bool(unknown) + [DOWNLOAD_LOOK] * is_downloading(situation)
    return Plan(
        apply=apply,
        delete=delete,
        status=status if changed else None,
        events=[*(transitions(situation.before, status) if changed else ()), *events],
        requeue_after=min(again, default=None),
    )


def _sizes(service: LLMService, current: str, deployments: dict[str, Object], observed: Observed) -> dict[str, int]:
    """The size of every engine Deployment there should be; one that is missing is to be deleted."""
    pods = [pod for pod in observed.pods if read.role(pod) == ROLE_ENGINE and not read.is_finished(pod)]

    def look(revision: str) -> RevisionPods:
        mine = [pod for pod in pods if read.revision(pod) == revision]
        wanted = deployments[revision]["spec"].get("replicas", 1) if revision in deployments else 0
        leaving = sum(map(read.is_terminating, mine))
        ready = sum(map(read.is_ready, mine))
        return RevisionPods(revision, wanted, staying=len(mine) - leaving, leaving=leaving, ready=ready)

    # Pods whose Deployment is gone still hold their resources until they have left.
    known = {*deployments, *map(read.revision, pods)} - {current}
    others = [look(revision) for revision in sorted(known, key=lambda name: _created(deployments.get(name)))]
    rollout = service.spec.rollout
    planned = sizes(
        service.spec.replicas,
        look(current),
        others,
        max_surge=rollout.max_surge,
        max_unavailable=rollout.max_unavailable,
    )
    gone = {pods.revision for pods in others if pods.gone}
    return {
        revision: count
        for revision, count in planned.items()
        if revision == current or (revision in deployments and revision not in gone)
    }


def _engine_deployments(observed: Observed) -> dict[str, Object]:
    """By revision. Told by their selectors, which nobody can change, unlike their labels."""
    found = {}
    for deployment in observed.deployments:
        labels = deployment["spec"]["selector"].get("matchLabels") or {}
        if labels.get(ROLE) == ROLE_ENGINE and REVISION in labels:
            found[labels[REVISION]] = deployment
    return found


def _scaled(revision: str, deployment: Object | None, replicas: int) -> list[EventRecord]:
    before = deployment["spec"].get("replicas", 1) if deployment else 0
    if before == replicas:
        return []
    word = "up" if replicas > before else "down"
    message = f"scaled {word} revision {revision} from {before} to {replicas}"
    return [EventRecord("Normal", f"Scaled{word.capitalize()}", message)]


def _children(observed: Observed) -> Sequence[Object]:
    return (
        *observed.deployments,
        *observed.services,
        *observed.config_maps,
        *observed.revisions,
        *observed.others,
    )


def _router_service(observed: Observed, name: str) -> Object | None:
    return next((obj for obj in observed.services if obj["metadata"]["name"] == name), None)


def _created(obj: Object | None) -> str:
    return str(obj["metadata"].get("creationTimestamp", "")) if obj else ""
