"""Whether a cluster has exactly what its LLMServices declare: each object against what `render` makes of the spec."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence

from blade_operator.cluster.kubernetes.root_key import FIELD
from blade_operator.cluster.kubernetes.root_key import NAME as KEY
from blade_operator.model import pods as podutil
from blade_operator.model.objects import Key, Object, Ref
from blade_operator.reconcile.drift import differs
from blade_operator.reconcile.revisions import find_revisions
from blade_operator.render import Defaults, engine_deployment, engine_objects, router_objects, service_objects
from blade_operator.spec.parse import parse_service
from blade_protocol.labels import NAME, ROLE_ENGINE, ROLE_ROUTER
from e2e.cluster.base import Cluster


def installed_defaults(cluster: Cluster, namespace: str) -> Defaults:
    """What the operator of ``namespace`` fills in, with the key it made for itself."""
    key = cluster.json("-n", namespace, "get", "secret", KEY)["data"][FIELD]
    return Defaults(internal_key=base64.b64decode(key), operator_namespace=namespace)


def revision(service: Object, defaults: Defaults) -> str:
    """The revision its spec stands for."""
    return find_revisions(parse_service(service), service, (), defaults).current


def problems(services: Sequence[Object], children: Iterable[Object], defaults: Defaults) -> list[str]:
    """Everything that is missing, different or too much, and every status that is not of the newest spec."""
    by_service: dict[Key, dict[Ref, Object]] = {_key(service): {} for service in services}
    found = []
    for child in children:
        owner = Key(child["metadata"]["namespace"], child["metadata"].get("labels", {}).get(NAME, ""))
        if owner in by_service:
            by_service[owner][Ref.of(child)] = child
        else:
            found.append(f"{child['kind']} {child['metadata']['name']}: orphan of {owner}")
    for service in services:
        key = _key(service)
        found += [f"{key}: {problem}" for problem in _problems(service, by_service[key], defaults)]
    return found


def _key(service: Object) -> Key:
    return Key(service["metadata"]["namespace"], service["metadata"]["name"])


def _problems(obj: Object, there: dict[Ref, Object], defaults: Defaults) -> Iterator[str]:
    service = parse_service(obj)
    kept = [child for ref, child in there.items() if ref.kind == "ControllerRevision"]
    revisions = find_revisions(service, obj, kept, defaults)
    if revisions.current != revision(obj, defaults):
        yield f"its templates were rendered otherwise: {revisions.current}, not {revision(obj, defaults)}"
    template = revisions.templates[revisions.current]
    wanted = [
        *service_objects(service, defaults),
        *engine_objects(service),
        *revisions.desired,
        engine_deployment(service, revisions.current, template, service.spec.replicas),
        *router_objects(service, defaults),
    ]
    for each in wanted:
        ref = Ref.of(each)
        if ref not in there:
            yield f"{ref.kind} {ref.name} is missing"
        elif differs(there[ref], each):
            yield f"{ref.kind} {ref.name} is not as declared"
        elif there[ref]["metadata"]["ownerReferences"][0]["uid"] != service.uid:
            yield f"{ref.kind} {ref.name} belongs to an earlier {service.name}"
    history = {Ref.of(each) for each in revisions.history}
    for ref in there.keys() - {Ref.of(each) for each in wanted} - history:
        if ref.kind != "Pod":
            yield f"{ref.kind} {ref.name} is too much"
    if len(history) > service.spec.rollout.revision_history_limit:
        yield f"{len(history)} earlier revisions are kept"
    yield from _pod_problems(obj, there, revisions.current)
    yield from _status_problems(obj, revisions.current)


def _pod_problems(service: Object, there: dict[Ref, Object], current: str) -> Iterator[str]:
    spec = service["spec"]
    pods = [obj for ref, obj in there.items() if ref.kind == "Pod"]
    for role, count in ((ROLE_ENGINE, spec["replicas"]), (ROLE_ROUTER, spec["router"]["replicas"])):
        mine = [pod for pod in pods if podutil.role(pod) == role]
        ready = sum(map(podutil.is_ready, mine))
        if (len(mine), ready) != (count, count):
            yield f"{len(mine)} {role} pods, {ready} of them ready, instead of {count}"
        if role == ROLE_ENGINE and (other := {podutil.revision(pod) for pod in mine} - {current}):
            yield f"engine pods of revisions {sorted(other)} instead of {current}"


def _status_problems(service: Object, current: str) -> Iterator[str]:
    status = service.get("status") or {}
    ready: Object = next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), {})
    replicas = service["spec"]["replicas"]
    reported = {
        "observedGeneration": (status.get("observedGeneration"), service["metadata"]["generation"]),
        "revision": (status.get("revision", {}).get("current"), current),
        "readyReplicas": (status.get("readyReplicas"), replicas),
        "updatedReplicas": (status.get("updatedReplicas"), replicas),
        "Ready": (ready.get("status"), "True" if replicas else "False"),
    }
    for name, (reported_value, true_value) in reported.items():
        if reported_value != true_value:
            yield f"status says {name} {reported_value}, not {true_value}"
