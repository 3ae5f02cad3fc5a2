"""``logs``: prints container logs of one pod, or of all pods of a service or Job. Reads the files, without a loop."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

from blade_operator.cli.errors import CommandError
from blade_operator.cluster.local.jobs import JOB_NAME
from blade_operator.cluster.local.layout import Layout
from blade_operator.cluster.local.logs import ContainerLogs, Follower
from blade_operator.cluster.local.store import matches, read_objects
from blade_operator.model.objects import Object
from blade_protocol.labels import KIND, NAME, ROLE, ROLE_ENGINE, ROLE_MEMBER, ROLE_ROUTER

_POLL = 0.2


@dataclass
class _Source:
    pod: str
    follower: Follower
    rest: bytes = b""

    def lines(self) -> list[bytes] | None:
        """Whole lines added since the last call; None when the pod is gone."""
        data = self.follower.poll()
        if data is None:
            return None
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines


def run(options: argparse.Namespace) -> int:
    """Print logs."""
    layout = Layout.of(options.name)
    pods = _pods(layout, options)
    sources = []
    for pod in pods:
        container, attempt = _attempt(pod, options)
        logs = ContainerLogs(layout.pod(pod) / "logs" / container)
        sources.append(_Source(pod["metadata"]["name"], Follower(logs, attempt, to_next=options.follow)))
    first = True
    while sources:
        for source in list(sources):
            lines = source.lines()
            if lines is None:
                sources.remove(source)
                continue
            if not options.follow and source.rest:
                lines.append(source.rest)
            if first and options.tail is not None:
                lines = lines[-options.tail :] if options.tail else []
            prefix = f"[{source.pod}] ".encode() if len(pods) > 1 else b""
            sys.stdout.buffer.writelines(prefix + line + b"\n" for line in lines)
        sys.stdout.buffer.flush()
        if not options.follow:
            break
        first = False
        time.sleep(_POLL)
    return 0


def _pods(layout: Layout, options: argparse.Namespace) -> list[Object]:
    """The pod of that name, or the pods of the service of that name that have the container, or those of a Job."""
    name = options.object.removeprefix("pod/").removeprefix("llm/").removeprefix("job/")
    pods = list(read_objects(layout.objects, "Pod"))
    everything = [pod for pod in pods if pod["metadata"]["namespace"] == options.namespace]
    exact = [pod for pod in everything if pod["metadata"]["name"] == name]
    if exact:
        return exact
    if of_job := [pod for pod in everything if matches(pod, {JOB_NAME: name})]:
        return of_job
    services = {obj["metadata"]["name"] for obj in read_objects(layout.objects, KIND)}
    if name not in services:
        raise CommandError(
            f'there is no pod and no LLMService "{name}" in namespace {options.namespace}, and no such Job'
        )
    role = ROLE_ROUTER if options.container == "router" else ROLE_ENGINE
    roles = {role} if role == ROLE_ROUTER else {role, ROLE_MEMBER}
    pods = [pod for pod in everything if matches(pod, {NAME: name}) and pod["metadata"]["labels"].get(ROLE) in roles]
    if not pods:
        raise CommandError(f'LLMService "{name}" has no {role} pods')
    return pods


def _attempt(pod: Object, options: argparse.Namespace) -> tuple[str, int]:
    """The container and the number of its run whose log is requested."""
    name = pod["metadata"]["name"]
    spec, status = pod["spec"], pod.get("status", {})
    container = options.container or spec["containers"][0]["name"]
    statuses = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    found = next((entry for entry in statuses if entry["name"] == container), None)
    if found is None:
        known = ", ".join(each["name"] for each in [*spec.get("initContainers", []), *spec["containers"]])
        raise CommandError(f'container "{container}" is not in pod "{name}": it has {known}')
    attempt: int = found["restartCount"]
    if options.previous:
        if attempt == 0:
            raise CommandError(f'previous terminated container "{container}" in pod "{name}" not found')
        return container, attempt - 1
    if "waiting" in found["state"] and not found["lastState"] and not options.follow:
        reason = found["state"]["waiting"]["reason"]
        raise CommandError(f'container "{container}" in pod "{name}" is waiting to start: {reason}')
    return container, attempt
