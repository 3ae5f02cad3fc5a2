"""``describe``: everything about one LLMService on one page, the way kubectl lays it out."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from blade_operator.cli import tables
from blade_operator.cli.errors import CommandError
from blade_operator.cli.get import find
from blade_operator.cli.manifests import dump
from blade_operator.cluster.local.commands import resource
from blade_operator.cluster.local.layout import Layout
from blade_operator.cluster.local.store import matches
from blade_operator.model.objects import Object
from blade_protocol.labels import KIND, NAME, SHORT_NAME, SINGULAR


def run(options: argparse.Namespace) -> int:
    """Print the page of each service named."""
    layout = Layout.of(options.name)
    names = [word.rpartition("/")[2] for word in options.object if word not in (SHORT_NAME, SINGULAR, f"{SINGULAR}s")]
    if not names or (len(options.object) > 1 and names[0] in ("pod", "pods", "po")):
        raise CommandError("name the LLMService to describe; a pod is shown by `get pod NAME -o yaml`, or `logs NAME`")
    for number, name in enumerate(names):
        services = find(layout, (KIND,), options.namespace, name)
        if not services:
            raise CommandError(f'{resource(KIND)} "{name}" not found')
        pods = [pod for pod in find(layout, ("Pod",), options.namespace, None) if matches(pod, {NAME: name})]
        born = services[0]["metadata"]["creationTimestamp"]
        events = [each for each in find(layout, ("Event",), options.namespace, None) if matches(each, {NAME: name})]
        events = [each for each in events if each["lastTimestamp"] >= born]  # not those of an earlier one of that name
        if number:
            print("\n")
        print("\n".join(page(services[0], pods, events)))
    return 0


def page(service: Object, pods: list[Object], events: list[Object]) -> Iterator[str]:
    """The lines of a service's page."""
    metadata, status = service["metadata"], service.get("status", {})
    yield from _pairs(
        ("Name", metadata["name"]),
        ("Namespace", metadata["namespace"]),
        ("Labels", ", ".join(f"{key}={value}" for key, value in (metadata.get("labels") or {}).items()) or "<none>"),
        ("Created", f"{metadata['creationTimestamp']} ({tables.since(metadata['creationTimestamp'])} ago)"),
        ("Generation", f"{metadata['generation']} (status is of {status.get('observedGeneration', 'none yet')})"),
        ("Phase", status.get("phase", "Pending")),
        ("URL", status.get("url") or "<none yet>"),
        ("Replicas", _replicas(service)),
        ("Router", _router(service["spec"].get("router", {}))),
        ("Revision", _revision(status)),
    )
    yield "Spec:"
    yield from (f"  {line}" for line in dump(service["spec"]).splitlines())
    yield from _table("Conditions", [_condition(each) for each in status.get("conditions", [])])
    if scaling := status.get("scaling"):
        yield from _scaling(scaling)
    yield from _table("Adapters", [_adapter(each) for each in status.get("adapters", [])])
    preflight = [row for entry in status.get("preflight", []) for row in _preflight(entry)]
    yield from _table("Preflight", preflight)
    if fit := status.get("fit"):
        yield "Fit:"
        yield from (f"  {line}" for line in _pairs(*((key, str(value)) for key, value in fit.items())))
    yield from _table("Failures", [_failure(each) for each in status.get("failures", [])])
    yield from _table("Pods", [tables.row(pod, wide=False) for pod in pods])
    yield from _table("Events", [_event(each) for each in events])


def _pairs(*pairs: tuple[str, str]) -> Iterator[str]:
    width = max(len(key) for key, _ in pairs) + 3
    yield from (f"{key + ':':{width}}{value}" for key, value in pairs)


def _table(title: str, rows: list[tables.Row]) -> Iterator[str]:
    if not rows:
        yield f"{title}:  <none>"
        return
    yield f"{title}:"
    lines = list(tables.render(rows))
    yield from (f"  {line}" for line in lines)


def _replicas(service: Object) -> str:
    status = service.get("status", {})
    counts = [("updatedReplicas", "updated"), ("readyReplicas", "ready"), ("drainingReplicas", "draining")]
    desired = status.get("desiredReplicas", service["spec"].get("replicas", 1))
    words = [f"{desired} desired", *(f"{status.get(key, 0)} {word}" for key, word in counts)]
    return " | ".join(words)


def _scaling(scaling: Object) -> Iterator[str]:
    """What was decided, without what is for the operator alone."""
    yield "Scaling:"
    pairs = [(key, str(scaling[key])) for key in ("mode", "replicas", "standby", "needed", "reason") if key in scaling]
    yield from (f"  {line}" for line in _pairs(*pairs))
    yield from (f"  {line}" for line in scaling.get("changes", ()))


def _router(router: Object) -> str:
    words = [str(router.get("policy", "auto"))]
    if auth := router.get("auth"):
        words.append(f"keys from Secret {auth['keysSecret']['name']}")
    if tls := router.get("tls"):
        words.append(f"TLS from Secret {tls['secretName']}")
    return " | ".join(words)


def _revision(status: Object) -> str:
    revision = status.get("revision", {})
    previous = f" (before: {revision['previous']})" if revision.get("previous") else ""
    return f"{revision.get('current') or '<none yet>'}{previous}"


def _condition(condition: Object) -> tables.Row:
    return [
        ("Type", condition["type"]),
        ("Status", condition["status"]),
        ("Since", tables.since(condition.get("lastTransitionTime", ""))),
        ("Reason", condition.get("reason", "")),
        ("Message", condition.get("message", "")),
    ]


def _adapter(adapter: Object) -> tables.Row:
    return [
        ("Name", adapter["name"]),
        ("Loaded", f"{adapter.get('loaded', 0)}/{adapter.get('desired', 0)}"),
        ("MiB", f"{adapter.get('bytes', 0) / 2**20:.1f}"),
        ("Pods", ", ".join(adapter.get("pods", ()))),
        ("Reason", adapter.get("reason", "")),
    ]


def _preflight(entry: Object) -> list[tables.Row]:
    return [
        [("Pod", entry["pod"]), ("Item", each["name"]), ("Status", each["status"]), ("Detail", each.get("detail", ""))]
        for each in entry.get("items", [])
    ]


def _failure(failure: Object) -> tables.Row:
    return [
        ("Pod", failure["pod"]),
        ("Container", failure["container"]),
        ("Reason", failure.get("reason", "")),
        ("Exit", str(failure.get("exitCode", ""))),
        ("Restarts", str(failure.get("restarts", 0))),
        ("Message", failure.get("message", "")),
        ("Last log", failure.get("lastLog", "")),
    ]


def _event(event: Object) -> tables.Row:
    times = f" (x{event['count']})" if event["count"] > 1 else ""
    return [
        ("Type", event["type"]),
        ("Reason", event["reason"]),
        ("Age", tables.since(event["lastTimestamp"]) + times),
        ("From", event["source"]["component"]),
        ("Object", f"{event['involvedObject']['kind'].lower()}/{event['involvedObject']['name']}"),
        ("Message", event["message"]),
    ]
