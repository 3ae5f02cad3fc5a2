"""Tables as ``kubectl get`` prints them, kind by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from blade_operator.cluster.local import clock
from blade_operator.cluster.local.pod_status import is_ready, restarts, succeeded
from blade_operator.cluster.local.services import port_of
from blade_operator.model.objects import Object
from blade_operator.spec import columns
from blade_operator.spec.crd.printer_columns import age
from blade_protocol.labels import OWN_KINDS, PROGRESS

Row = list[tuple[str, str]]
"""Header and cell of each column."""


def row(obj: Object, *, wide: bool) -> Row:
    """The row of one object."""
    if obj["kind"] in OWN_KINDS:
        return columns(obj, wide=wide)
    return _KINDS.get(obj["kind"], _plain)(obj, wide)


def render(rows: Sequence[Row], widths: list[int] | None = None, *, header: bool = True) -> Iterable[str]:
    """The lines of a table; ``widths`` (changed in place) keep columns where an earlier part of the table had them."""
    lines = [[name for name, _ in rows[0]]] if header else []
    lines += [[cell for _, cell in each] for each in rows]
    widths = widths if widths is not None else []
    widths += [0] * (len(rows[0]) - len(widths))
    for line in lines:
        widths[:] = [max(width, len(cell)) for width, cell in zip(widths, line, strict=True)]
    for line in lines:
        yield "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def since(stamp: str) -> str:
    """Time since ``stamp`` as kubectl words it."""
    return age(stamp, datetime.now(UTC)) if stamp else "<unknown>"


def _age(obj: Object) -> tuple[str, str]:
    return "AGE", since(obj["metadata"].get("creationTimestamp", ""))


def _plain(obj: Object, wide: bool) -> Row:
    return [("NAME", obj["metadata"]["name"]), _age(obj)]


def _data(obj: Object, wide: bool) -> Row:
    return [("NAME", obj["metadata"]["name"]), ("DATA", str(len(obj.get("data") or {}))), _age(obj)]


def _deployment(obj: Object, wide: bool) -> Row:
    status, wanted = obj.get("status", {}), obj["spec"].get("replicas", 1)
    return [
        ("NAME", obj["metadata"]["name"]),
        ("READY", f"{status.get('readyReplicas', 0)}/{wanted}"),
        ("UP-TO-DATE", str(status.get("updatedReplicas", 0))),
        ("AVAILABLE", str(status.get("availableReplicas", 0))),
        _age(obj),
    ]


def _stateful_set(obj: Object, wide: bool) -> Row:
    ready, wanted = obj.get("status", {}).get("readyReplicas", 0), obj["spec"].get("replicas", 1)
    return [("NAME", obj["metadata"]["name"]), ("READY", f"{ready}/{wanted}"), _age(obj)]


def _job(obj: Object, wide: bool) -> Row:
    status = obj.get("status", {})
    words = [each["type"] for each in status.get("conditions", []) if each["status"] == "True"]
    begun, ended = status.get("startTime"), status.get("completionTime")
    return [
        ("NAME", obj["metadata"]["name"]),
        ("STATUS", words[0] if words else "Running"),
        ("COMPLETIONS", f"{status.get('succeeded', 0)}/1"),
        *([("PROGRESS", _progress(obj))] if wide else []),
        ("DURATION", age(begun, clock.parse(ended) if ended else datetime.now(UTC)) if begun else ""),
        _age(obj),
    ]


def _progress(job: Object) -> str:
    return str((job["metadata"].get("annotations") or {}).get(PROGRESS, "<none>"))


def _service(obj: Object, wide: bool) -> Row:
    port = port_of(obj)
    ports = ",".join(f"{entry['port']}/TCP" for entry in obj["spec"].get("ports", []))
    return [
        ("NAME", obj["metadata"]["name"]),
        ("TYPE", obj["spec"].get("type", "ClusterIP")),
        ("CLUSTER-IP", obj["spec"].get("clusterIP", "<none>")),
        ("EXTERNAL-IP", f"127.0.0.1:{port}" if port is not None else "<none>"),
        ("PORT(S)", ports),
        _age(obj),
    ]


def _pod(obj: Object, wide: bool) -> Row:
    statuses = obj.get("status", {}).get("containerStatuses", [])
    ready = sum(bool(status["ready"]) for status in statuses)
    cells = [
        ("NAME", obj["metadata"]["name"]),
        ("READY", f"{ready}/{len(obj['spec']['containers'])}"),
        ("STATUS", pod_status_text(obj)),
        ("RESTARTS", _restarts(obj)),
        _age(obj),
    ]
    if wide:
        ports = [port["containerPort"] for each in obj["spec"]["containers"] for port in each.get("ports", [])]
        cells.append(("IP", obj.get("status", {}).get("podIP", "<none>")))
        cells.append(("PORTS", ",".join(map(str, ports))))
        pids = [status.get("containerID", "").split("/")[-2:-1] for status in statuses]
        cells.append(("PID", ",".join(pid for each in pids for pid in each)))
    return cells


def _restarts(pod: Object) -> str:
    count = restarts(pod)
    ends = [
        status["lastState"]["terminated"]["finishedAt"]
        for status in pod.get("status", {}).get("containerStatuses", [])
        if status["lastState"]
    ]
    return f"{count} ({since(max(ends))} ago)" if count and ends else str(count)


def pod_status_text(pod: Object) -> str:
    """The STATUS column: one word for the state of the pod, as kubectl prints it."""
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    status = pod.get("status", {})
    init = status.get("initContainerStatuses", [])
    for number, entry in enumerate(init):
        if not succeeded(entry):
            word = _container_status_text(entry)
            return f"Init:{number}/{len(init)}" if word in ("", "Running", "PodInitializing") else f"Init:{word}"
    words = [_container_status_text(entry) for entry in status.get("containerStatuses", [])]
    if all(word == "Running" for word in words):
        return "Running" if words or is_ready(pod) else str(status.get("phase", "Pending"))
    return next(word for word in words if word != "Running")


def _container_status_text(status: Object) -> str:
    state = status["state"]
    if "running" in state:
        return "Running"
    detail = state.get("waiting") or state.get("terminated") or {}
    return str(detail.get("reason", ""))


def _event(obj: Object, wide: bool) -> Row:
    about = obj["involvedObject"]
    return [
        ("LAST SEEN", since(obj["lastTimestamp"])),
        ("TYPE", obj["type"]),
        ("REASON", obj["reason"]),
        ("OBJECT", f"{about['kind'].lower()}/{about['name']}"),
        ("MESSAGE", obj["message"]),
    ]


_KINDS: dict[str, Callable[[Object, bool], Row]] = {
    "ConfigMap": _data,
    "Deployment": _deployment,
    "Event": _event,
    "Job": _job,
    "Pod": _pod,
    "Secret": _data,
    "Service": _service,
    "StatefulSet": _stateful_set,
}
