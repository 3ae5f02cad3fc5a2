"""``status``: a service as a tree: its conditions, its pods and their containers, and what is wrong with each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.text import Text
from rich.tree import Tree

from blade_operator.cli.tables import pod_status_text
from blade_operator.command_line import one_line
from blade_operator.kubectl.output import STYLES, console, print_data, styled, warn
from blade_operator.kubectl.places.choice import open_place
from blade_operator.kubectl.places.place import Place
from blade_operator.kubectl.pods import (
    bare,
    cost_of,
    failing,
    last_line,
    namespace_of,
    pods_of,
    the_service,
    words,
)
from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.spec.crd.printer_columns import age
from blade_operator.status.sleep import is_at_rest
from blade_protocol.labels import KIND

_NEGATIVE = frozenset(
    {"Degraded", "Progressing", "Reconciling", "Stalled", "Contested", "RolloutAborted", "InternalTokenRefused"}
)
"""Conditions that are well when they are not True."""
_MOVING = frozenset({"Progressing", "Reconciling"})
_SCALING = ("mode", "replicas", "needed", "standby", "reason")


def run(options: argparse.Namespace) -> int:
    """Print the trees."""
    with open_place(options) as place:
        namespace = namespace_of(options, place)
        if options.object:
            services = [the_service(place, namespace, bare(options.object))]
        else:
            services = place.list(KIND, None if options.all_namespaces else namespace)
        found = [summary(place, service) for service in services]
    if options.output:
        print_data(found[0] if options.object else {"services": found}, options.output)
        return 0
    if not found:
        warn("No LLMServices found." if options.all_namespaces else f"No LLMServices found in {namespace} namespace.")
    screen = console()
    for number, each in enumerate(found):
        if number:
            screen.print()
        screen.print(tree(each))
    return 0


def summary(place: Place, service: Object) -> dict[str, Any]:
    """All that the tree shows, as data."""
    metadata, status = service["metadata"], service.get("status", {})
    pods = [_pod(place, pod) for pod in pods_of(place, service)]
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "phase": status.get("phase", "Pending"),
        "url": status.get("url", ""),
        "model": service["spec"]["model"]["uri"],
        "engines": {
            "desired": status.get("desiredReplicas", service["spec"].get("replicas", 1)),
            "ready": status.get("readyReplicas", 0),
            "updated": status.get("updatedReplicas", 0),
            "draining": status.get("drainingReplicas", 0),
        },
        "observed": status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        "conditions": status.get("conditions", []),
        "revision": status.get("revision", {}),
        **{key: status[key] for key in ("canary", "adapters", "preflight") if status.get(key)},
        **({"cost": cost} if (cost := cost_of(service)) else {}),
        **({"scaling": scaling} if (scaling := _scaling(status)) else {}),
        "failures": status.get("failures", []),
        "pods": pods,
    }


def _scaling(status: Object) -> dict[str, Any]:
    """What was decided, without what is for the operator alone."""
    scaling = status.get("scaling") or {}
    return {key: scaling[key] for key in _SCALING if scaling.get(key) not in (None, "")}


def _pod(place: Place, pod: Object) -> dict[str, Any]:
    status = pod.get("status", {})
    trouble = next(
        (
            f"{each.get('reason', '')}: {each.get('message', '')}"
            for each in status.get("conditions") or ()
            if each["type"] == "PodScheduled" and each["status"] == "False"
        ),
        status.get("message", ""),
    )
    return {
        "name": pod["metadata"]["name"],
        "role": podutil.role(pod),
        "revision": podutil.revision(pod),
        "node": pod["spec"].get("nodeName", ""),
        "status": pod_status_text(pod) if _complete(status) else str(status.get("phase", "Pending")),
        "ready": podutil.is_ready(pod),
        "created": pod["metadata"].get("creationTimestamp", ""),
        **({"message": trouble} if trouble else {}),
        "containers": [_container(place, pod, state) for state in podutil.containers(pod)],
    }


def _complete(status: Object) -> bool:
    """Whether every container says all that the words of kubectl are made of."""
    entries = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return bool(entries) and all(each.get("state") for each in entries)


def _container(place: Place, pod: Object, state: podutil.ContainerState) -> dict[str, Any]:
    bad = failing(state)
    line = last_line(place, pod, state) if bad else ""
    return {
        "name": state.name,
        "init": state.init,
        "state": words(state),
        "failing": bad,
        "restarts": state.restarts,
        **({"lastLine": line} if line else {}),
    }


def tree(found: dict[str, Any]) -> Tree:
    """``summary`` for people."""
    engines = found["engines"]
    counts = f"{engines['ready']}/{engines['desired']} engines ready"
    root = Tree(
        Text.assemble(
            ("llm/", "dim"),
            (one_line(found["name"]), "bold"),
            ("  ", ""),
            (one_line(found["phase"]), _phase_style(found["phase"])),
            f"  {counts}",
            (f"  {one_line(found['url'])}" if found["url"] else "", "cyan"),
        ),
        guide_style="dim",
    )
    if not found["observed"]:
        root.add(styled("the operator has not seen the latest change yet: is it running?", STYLES["warn"]))
    for line, style in _conditions(found["conditions"]):
        root.add(styled(line, style))
    _add_rollout(root, found)
    if scaling := found.get("scaling"):
        text = f"scaling ({scaling.get('mode', '')}): {scaling.get('replicas', 0)} engines"
        root.add(styled(f"{text}: {scaling['reason']}" if scaling.get("reason") else text))
    for adapter in found.get("adapters", ()):
        text = f"adapter {adapter['name']}: on {adapter.get('loaded', 0)} of {adapter.get('desired', 0)} engines"
        short = adapter.get("loaded", 0) < adapter.get("desired", 0)
        why = f": {adapter['reason']}" if adapter.get("reason") else ""
        root.add(styled(text + why, STYLES["bad"] if short and why else ""))
    for entry in found.get("preflight", ()):
        for item in entry.get("items", ()):
            if item["status"] != "PASS":
                bad = STYLES["bad" if item["status"] == "FAILED" else "warn"]
                root.add(styled(f"check of {entry['pod']}: {item['name']} {item['status']}: {item['detail']}", bad))
    pods = {pod["name"] for pod in found["pods"]}
    for failure in found["failures"]:
        if failure.get("pod", "") not in pods:
            root.add(styled(f"{failure.get('reason', '')}: {failure.get('message', '')}", STYLES["bad"]))
    for pod in found["pods"]:
        _add_pod(root, pod, [each for each in found["failures"] if each.get("pod") == pod["name"]])
    return root


def _phase_style(phase: str) -> str:
    if phase == "Ready":
        return STYLES["ok"]
    return STYLES["bad"] if phase in ("Degraded", "Failed", "Invalid") else STYLES["warn"]


def _conditions(conditions: list[Object]) -> Iterator[tuple[str, str]]:
    """The conditions in a line each, those that are as they should be together in one."""
    fine, said = [], ""
    states = {each["type"]: each["status"] for each in conditions}
    moving = "True" in map(states.get, _MOVING) and "True" not in map(states.get, ("Degraded", "Stalled"))
    for each in conditions:
        kind, value = each["type"], each["status"]
        well = value == ("False" if kind in _NEGATIVE else "True")
        if well:
            fine += [kind] if kind not in _NEGATIVE else []
            continue
        calm = moving or kind in _MOVING or value == "Unknown" or is_at_rest(each.get("reason", ""))
        style = STYLES["warn" if calm else "bad"]
        mark = "…" if style == STYLES["warn"] else "✗"
        message = each.get("message", "")
        known = bool(message) and message in said
        said += f"{message}\n"
        yield f"{mark} {kind} is {value} ({each.get('reason', '')}){'' if known else ': ' + message}", style
    if fine:
        yield "✓ " + ", ".join(fine), STYLES["ok"]


def _add_rollout(root: Tree, found: dict[str, Any]) -> None:
    revision, engines = found["revision"], found["engines"]
    if revision.get("updating") and engines["updated"] < engines["desired"]:
        text = f"rollout: {engines['updated']} of {engines['desired']} engines run {revision.get('current', '')}"
        root.add(styled(text, STYLES["warn"]))
    if revision.get("failed"):
        root.add(styled(f"rolled back: {revision['failed']}; `rollout retry` tries it again", STYLES["bad"]))
    if canary := found.get("canary"):
        text = (
            f"canary {canary.get('revision', '')}: {canary.get('phase', '')}, {canary.get('weight', 0)} % of requests"
        )
        root.add(styled(f"{text}: {canary['reason']}" if canary.get("reason") else text, STYLES["warn"]))


def _add_pod(root: Tree, pod: dict[str, Any], failures: list[Object]) -> None:
    style = STYLES["ok" if pod["ready"] else "warn"]
    bad = any(each["failing"] for each in pod["containers"])
    old = age(pod["created"], datetime.now(UTC)) if pod["created"] else ""
    details = "  ".join(filter(None, (pod["revision"], pod["node"], old)))
    branch = root.add(
        Text.assemble(
            (f"{one_line(pod['role'])} ", "bold"),
            one_line(pod["name"]),
            "  ",
            (one_line(pod["status"]), STYLES["bad"] if bad else style),
            (f"  {one_line(details)}", "dim"),
        )
    )
    if pod.get("message"):
        branch.add(styled(pod["message"], STYLES["bad"]))
    for each in pod["containers"]:
        leaf = branch.add(styled(f"{each['name']}: {each['state']}", STYLES["bad"] if each["failing"] else "dim"))
        if each.get("lastLine"):
            leaf.add(styled(f"> {each['lastLine']}", STYLES["bad"]))
    for failure in failures:
        branch.add(styled(f"{failure.get('reason', '')}: {failure.get('message', '')}", STYLES["bad"]))
