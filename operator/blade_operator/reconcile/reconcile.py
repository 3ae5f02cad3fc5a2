"""Reconcile: decides for one service what to do now. A pure function from the observed state to a plan.

Everything a decision needs is in the objects, so an operator that was killed anywhere resumes where it stopped. The
spec is never written. While a spec is invalid everything stays as it is and only the status says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime

from blade_operator.adapters.decide import Decision, decide
from blade_operator.adapters.object_status import changed, entries
from blade_operator.adapters.selection import select
from blade_operator.model import pods as podutil
from blade_operator.model.canary import read_canary
from blade_operator.model.deployments import router_replicas
from blade_operator.model.groups import Group
from blade_operator.model.objects import Object, Ref
from blade_operator.model.observed import Observed
from blade_operator.model.plan import Action, EventRecord, Plan, Prune
from blade_operator.model.rollout import last_state
from blade_operator.model.scale_target import ScaleTarget
from blade_operator.reconcile.canary import LOOK, abort_note, canary_events, canary_weights, is_watched, shadow_config
from blade_operator.reconcile.installation import claim, contested, refusal
from blade_operator.reconcile.ownership import own_pods, with_own_children
from blade_operator.reconcile.replicas import plan_engines
from blade_operator.reconcile.revisions import Revisions, find_revisions
from blade_operator.reconcile.rotation import routers_wait, secrets_to_replace
from blade_operator.reconcile.router_order import refuses_a_router
from blade_operator.reconcile.scale_down import scale_down
from blade_operator.reconcile.scaling.scale import scale, with_replicas
from blade_operator.reconcile.sidecars import roles_with_sidecars
from blade_operator.reconcile.standby import keep_pool, pool_size, with_pool, with_warm_as_ready
from blade_operator.reconcile.workloads import (
    Workload,
    change_workload,
    find_workloads,
    group_kind,
    groups_of,
    leader_marks,
    refs_of,
    replacement_events,
    with_groups_as_pods,
)
from blade_operator.reconcile.writes import objects_to_apply, objects_to_delete, objects_to_prune
from blade_operator.render import Defaults, engine_objects, router_objects, service_objects
from blade_operator.render.meta import router_name
from blade_operator.render.storage import adapter_argument, claim_name
from blade_operator.scaling.autoscaler import Autoscaler
from blade_operator.spec.errors import SpecError
from blade_operator.spec.parse import LLMService, parse_service
from blade_operator.status import StatusInputs, build_status, transitions
from blade_operator.status.download import is_downloading
from blade_protocol.labels import REVISION, ROLE_ENGINE

UNREACHABLE_REQUEUE = 10.0
"""Seconds until an engine that did not respond is queried again."""
DOWNLOAD_REQUEUE = 5.0
"""Seconds until the progress of a download is queried again."""


def reconcile(observed: Observed, now: datetime, defaults: Defaults | None = None) -> Plan:
    """The plan for one service: everything to do now. An empty plan means that all is as declared."""
    if "deletionTimestamp" in observed.service["metadata"]:
        return Plan()
    defaults = defaults or Defaults()
    if refused := refusal(observed, defaults.installation, now):
        return refused
    observed = with_own_children(observed)
    plan = _decide(observed, now, defaults)
    return dataclasses.replace(plan, claim=claim(observed.service, defaults.installation))


def _decide(observed: Observed, now: datetime, defaults: Defaults) -> Plan:
    groups = groups_of(observed)
    observed = with_groups_as_pods(observed, groups)
    try:
        selection = select(parse_service(observed.service), observed.lora_adapters)
    except SpecError as error:
        return _invalid(observed, groups, error, now, defaults)
    scaled = scale(selection.service, observed, now)
    service = with_replicas(selection.service, scaled.replicas)
    revisions = find_revisions(service, observed.service, observed.revisions, defaults, _model_claim(service, observed))
    workloads = find_workloads(observed, groups)
    before = {revision: workload.replicas for revision, workload in workloads.items()}
    waits = _waits_for_routers(revisions, before, observed)
    size = pool_size(service)
    engines = plan_engines(service, revisions, workloads, observed, now, waits_for_routers=waits, standby=size)
    pool = keep_pool(service, size, engines.counts, observed, now, target=engines.state.target, beside=engines.beside)
    lowered = scale_down(engines.counts, before, with_warm_as_ready(observed, now), now, waits=pool.waking)
    planned = lowered.replicas
    sidecars = roles_with_sidecars(observed)
    desired = [
        *service_objects(service, defaults, sidecars, bool(groups)),
        *engine_objects(service, bool(groups), pool.standing_by),
        *revisions.desired,
    ]
    events, kind = replacement_events(workloads), group_kind(defaults, observed)
    removed = [ref for name, workload in workloads.items() if name not in planned for ref in refs_of(workload)]
    for revision, replicas in planned.items():
        workload = workloads.get(revision, Workload())
        # A revision whose ControllerRevision someone deleted is still scaled, with the template it runs with.
        template = revisions.templates.get(revision) or workload.template
        change = change_workload(service, revision, template, replicas, workload, groups, observed, kind)
        desired += change.desired
        removed += change.delete
        if not any(Ref.of(obj) in observed.rejected for obj in change.desired):
            events += _scaling_events(revision, before.get(revision, 0), replicas)
    events += canary_events(read_canary(observed.service), engines.canary)
    weights = canary_weights(engines.canary, workloads)
    routers = router_objects(
        service,
        defaults,
        router_replicas(observed.deployments),
        weights,
        shadow=shadow_config(engines.canary, service),
        aborted=abort_note(engines.canary),
    )
    desired += routers[:-1] if routers_wait(observed, revisions.templates, now) else routers
    adapters = _adapters(service, observed)
    inputs = StatusInputs(
        obj=observed.service,
        service=service,
        adapters=adapters.statuses,
        left_out=selection.left_out,
        invalid=None,
        pods=own_pods(observed),
        groups=groups,
        router_service=_router_service(observed, router_name(service)),
        engines=observed.engines,
        downloads=observed.downloads,
        unauthorized=observed.unauthorized,
        deployments=observed.deployments,
        rejected=observed.rejected,
        current=revisions.current,
        previous=revisions.previous,
        outdated=revisions.outdated,
        router_revision=routers[-1]["spec"]["template"]["metadata"]["labels"][REVISION],
        rollout=engines.state,
        canary=engines.canary,
        old_deployments=any(revision != engines.state.target for revision in planned),
        waits_for_routers=waits and engines.state.target == revisions.current,
        scaling=with_pool(scaled.status, size, pool),
        standby=size,
        signals=observed.signals if observed.signals_queried else None,
        scaling_judgement=scaled.judgement,
        installation=defaults.installation,
    )
    existing = {Ref.of(obj): obj for obj in _children(observed)}
    keep = {*planned, revisions.current, engines.state.stable}
    replace = secrets_to_replace(desired, observed, now)
    apply = [obj for obj in objects_to_apply(desired, existing, observed.pods, now) if obj not in replace]
    return _plan(
        inputs,
        now,
        replace=replace,
        apply=[*apply, *lowered.marks, *pool.marks, *leader_marks(groups, lowered.marks)],
        prune=objects_to_prune(desired, existing, apply),
        lora_adapters=changed(
            service.name, observed.lora_adapters, entries(service.name, selection, adapters.statuses)
        ),
        delete=[*removed, *revisions.expired(keep), *objects_to_delete(desired, existing.values(), service.uid)],
        actions=[*lowered.actions, *pool.actions, *adapters.actions],
        events=[*scaled.events, *pool.events, *events],
        requeue=[
            *(*scaled.requeue, *lowered.requeue, *pool.requeue, *adapters.requeue),
            *[LOOK] * is_watched(engines.canary),
        ],
        autoscaler=scaled.autoscaler,
        scale_target=scaled.target,
    )


def _adapters(service: LLMService, observed: Observed) -> Decision:
    """What to do about adapters, on the engines that respond and stay."""
    leaving = {
        pod["metadata"]["name"] for pod in observed.pods if not podutil.is_active(pod) or podutil.draining_since(pod)
    }
    lists = {pod: infos for pod, infos in observed.adapters.items() if pod not in leaving}
    before = (observed.service.get("status") or {}).get("adapters") or ()
    declared = [(adapter, adapter_argument(adapter.uri)) for adapter in service.spec.adapters]
    silent = {
        pod["metadata"]["name"]: [entry["name"] for entry in before if pod["metadata"]["name"] in entry.get("pods", ())]
        for pod in observed.pods
        if podutil.role(pod) == ROLE_ENGINE
        and podutil.is_ready(pod)
        and pod["metadata"]["name"] not in leaving
        and pod["metadata"]["name"] not in observed.adapters
        and ((state := observed.engines.get(pod["metadata"]["name"])) is None or state.max_adapters)
    }
    known = [entry["name"] for entry in before]
    return decide(declared, known, lists, observed.engines, silent, observed.refused_adapters)


def _invalid(observed: Observed, groups: Sequence[Group], error: SpecError, now: datetime, defaults: Defaults) -> Plan:
    name = observed.service["metadata"]["name"]
    before = (observed.service.get("status") or {}).get("revision", {})
    inputs = StatusInputs(
        obj=observed.service,
        service=None,
        invalid=error,
        pods=own_pods(observed),
        groups=groups,
        router_service=_router_service(observed, f"{name}-router"),
        engines=observed.engines,
        deployments=observed.deployments,
        current=before.get("current", ""),
        previous=before.get("previous", ""),
        rollout=last_state(before),
        canary=read_canary(observed.service),
        installation=defaults.installation,
    )
    return _plan(inputs, now, autoscaler=observed.autoscaler)


def _plan(
    inputs: StatusInputs,
    now: datetime,
    *,
    replace: Sequence[Object] = (),
    apply: Sequence[Object] = (),
    prune: Sequence[Prune] = (),
    lora_adapters: Mapping[str, Object | None] | None = None,
    delete: Sequence[Ref] = (),
    actions: Sequence[Action] = (),
    events: Sequence[EventRecord] = (),
    requeue: Sequence[float] = (),
    autoscaler: Autoscaler | None = None,
    scale_target: ScaleTarget | None = None,
) -> Plan:
    status = build_status(inputs, now)
    if other := contested(inputs.last_status, inputs.installation, now):
        status["conditions"] = [*status["conditions"], other]
    is_new = status != inputs.last_status
    unreachable = [pod for pod in inputs.engine_pods if podutil.is_ready(pod)]
    unreachable = [pod for pod in unreachable if pod["metadata"]["name"] not in inputs.engines]
    after = [*requeue, *[UNREACHABLE_REQUEUE] * bool(unreachable), *[DOWNLOAD_REQUEUE] * is_downloading(inputs)]
    return Plan(
        replace=list(replace),
        apply=list(apply),
        prune=list(prune),
        delete=list(delete),
        status=status if is_new else None,
        lora_adapters=dict(lora_adapters or {}),
        actions=list(actions),
        events=[*(transitions(inputs.last_status, status) if is_new else ()), *events],
        autoscaler=autoscaler,
        scale_target=scale_target,
        wakes_on_demand=inputs.sleeps,
        requeue_after=min(after, default=None),
    )


def _waits_for_routers(revisions: Revisions, before: Mapping[str, int], observed: Observed) -> bool:
    """Whether engines of the current revision are not started yet, because they would refuse a router that is there."""
    started = before.get(revisions.current, 0)
    return not started and refuses_a_router(revisions.templates[revisions.current], observed.pods)


def _scaling_events(revision: str, before: int, replicas: int) -> list[EventRecord]:
    if before == replicas:
        return []
    direction = "up" if replicas > before else "down"
    message = f"scaled {direction} revision {revision} from {before} to {replicas}"
    return [EventRecord("Normal", f"Scaled{direction.capitalize()}", message)]


def _children(observed: Observed) -> Sequence[Object]:
    return (
        *observed.deployments,
        *observed.group_objects,
        *observed.services,
        *observed.config_maps,
        *observed.revisions,
        *observed.others,
    )


def _router_service(observed: Observed, name: str) -> Object | None:
    return next((obj for obj in observed.services if obj["metadata"]["name"] == name), None)


def _model_claim(service: LLMService, observed: Observed) -> Object | None:
    name = claim_name(service)
    claims = (obj for obj in observed.others if obj["kind"] == "PersistentVolumeClaim")
    return next((obj for obj in claims if obj["metadata"]["name"] == name), None)
