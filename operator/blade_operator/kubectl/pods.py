"""Services and their pods, found and read for people."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from blade_operator.cli.errors import CommandError
from blade_operator.kubectl.places.place import LogRange, NotFound, Place
from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_protocol.labels import KIND, NAME, ROLE_ENGINE, ROLE_MEMBER, ROLE_ROUTER, SHORT_NAME

ENGINE_ROLES = (ROLE_ENGINE, ROLE_MEMBER)


def namespace_of(options: argparse.Namespace, place: Place) -> str:
    """The namespace that ``options`` name, or that of the place."""
    return str(options.namespace or place.namespace)


def bare(name: str) -> str:
    """``NAME`` of ``llm/NAME`` or ``pod/NAME``."""
    return name.rpartition("/")[2]


def the_service(place: Place, namespace: str, name: str | None) -> Object:
    """The service called ``name``; without a name the only one in the namespace.

    Raises:
        CommandError: there is none, or there are several.
    """
    if name:
        return place.get(KIND, namespace, bare(name))
    found = place.list(KIND, namespace)
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(f"there is no LLMService in namespace {namespace}; -n names another one")
    names = ", ".join(each["metadata"]["name"] for each in found)
    raise CommandError(f"name one of the LLMServices in namespace {namespace}: {names}")


def pods_of(place: Place, service: Object, *roles: str) -> list[Object]:
    """The pods of a service that have one of ``roles``, routers first."""
    metadata = service["metadata"]
    found = place.list("Pod", metadata["namespace"], {NAME: metadata["name"]})
    chosen = [pod for pod in found if podutil.role(pod) in (roles or (ROLE_ROUTER, *ENGINE_ROLES))]
    return sorted(chosen, key=lambda pod: (podutil.role(pod) != ROLE_ROUTER, pod["metadata"]["name"]))


def ready_router(place: Place, service: Object) -> Object:
    """A router that takes requests. Raises `CommandError` when there is none."""
    routers = [pod for pod in pods_of(place, service, ROLE_ROUTER) if podutil.is_ready(pod)]
    if not routers:
        name = service["metadata"]["name"]
        raise CommandError(f"no router of {SHORT_NAME}/{name} is ready; `status {name}` says why")
    return routers[0]


def cost_of(service: Object) -> Object:
    """``status.cost`` without what is for the operator alone; empty where there is none."""
    found = service.get("status", {}).get("cost") or {}
    return {name: value for name, value in found.items() if name != "state"}


@dataclass(frozen=True, slots=True)
class Trouble:
    """A container that fails, or a pod that cannot run."""

    pod: str
    container: str
    """Empty where no container is the cause."""
    reason: str
    message: str
    last_log: str
    exit_code: int
    restarts: int

    def __str__(self) -> str:
        times = f", {self.restarts} restarts" if self.restarts > 1 else ", 1 restart" if self.restarts else ""
        code = f", exit code {self.exit_code}" if self.exit_code else ""
        place = " ".join(filter(None, (self.pod and f"pod {self.pod}", self.container and f"({self.container})")))
        return f"{place or 'the service'}: {self.reason or 'failing'}{code}{times}: {self.message}"


def troubles(service: Object) -> list[Trouble]:
    """What the operator says that fails, causes first."""
    return [
        Trouble(
            pod=each.get("pod", ""),
            container=each.get("container", ""),
            reason=each.get("reason", ""),
            message=each.get("message", ""),
            last_log=each.get("lastLog", ""),
            exit_code=each.get("exitCode", 0),
            restarts=each.get("restarts", 0),
        )
        for each in service.get("status", {}).get("failures", ())
    ]


def failing(state: podutil.ContainerState) -> bool:
    """Whether a container fails now: it waits after a crash or cannot start, or ended with an error."""
    if state.running:
        return state.restarts > 0 and not state.ready
    if state.waiting:
        return state.waiting not in ("ContainerCreating", "PodInitializing")
    return state.termination is not None and state.termination.exit_code != 0


def words(state: podutil.ContainerState) -> str:
    """The state of a container in words."""
    end = state.termination or state.last_termination
    again = f", {state.restarts} restarts" if state.restarts > 1 else ", 1 restart" if state.restarts else ""
    if state.running:
        return f"running{'' if state.ready or state.init else ', not ready'}{again}"
    if state.waiting:
        why = f" (last: {end.reason or 'ended'}, exit code {end.exit_code})" if end else ""
        return f"{state.waiting}{why}{again}"
    if end is not None:
        return ("completed" if end.exit_code == 0 else f"{end.reason or 'failed'}, exit code {end.exit_code}") + again
    return "waiting"


def last_line(place: Place, pod: Object, state: podutil.ContainerState) -> str:
    """The last line that a container left: of its log, else of its termination message; empty without any."""
    found = ""
    for previous in (False, True):
        if previous and not state.restarts:
            break
        try:
            text = place.log(pod, state.name, LogRange(previous=previous, tail=20, limit=64 * 1024))
        except CommandError:
            continue
        lines = [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1]
    end = state.termination or state.last_termination
    if end is not None and end.message:
        found = end.message.strip().splitlines()[-1] if end.message.strip() else ""
    return found
