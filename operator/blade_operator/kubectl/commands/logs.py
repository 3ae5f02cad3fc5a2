"""``logs``: prints logs of containers. Of a service what fails comes first, with its name and why it fails."""

from __future__ import annotations

import argparse
import queue
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from blade_operator.cli import logs as local_logs
from blade_operator.cli.errors import CommandError
from blade_operator.command_line import one_line, safe
from blade_operator.kubectl.places.choice import open_place
from blade_operator.kubectl.places.place import LogRange, NotFound, Place
from blade_operator.kubectl.pods import ENGINE_ROLES, bare, failing, namespace_of, pods_of, the_service, troubles, words
from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_protocol.labels import KIND, ROLE_ROUTER

TAIL: Final = 100
"""Lines of each container, where nothing else is said and a service is named."""
_MOST_FOLLOWED: Final = 32


@dataclass(frozen=True, slots=True)
class Source:
    """A container whose log is wanted."""

    pod: Object
    container: str
    why: str = ""
    """Why it fails; empty when it does not."""

    @property
    def title(self) -> str:
        """Its name, and why it fails."""
        name = f"{self.pod['metadata']['name']} {self.container}"
        return f"{name}: {self.why}" if self.why else name


def run(options: argparse.Namespace) -> int:
    """Print logs."""
    with open_place(options) as place:
        namespace = namespace_of(options, place)
        whole, sources = find_sources(place, namespace, options.object, options.container)
        tail = options.tail if options.tail is not None or not whole else TAIL
        if options.follow:
            _follow(place, sources, tail)
        else:
            failed = [_print(place, source, len(sources) > 1, options.previous, tail) for source in sources]
            if all(failed):
                return 1
    return 0


def run_here_or_there(options: argparse.Namespace) -> int:
    """``blade_operator logs``: of a cluster, and of services that fail, as `run`; else as the local runtime prints
    logs, which knows Jobs as well."""
    with open_place(options) as place:
        if place.local and not _fails(place, options):
            options.namespace = options.namespace or place.namespace
            return local_logs.run(options)
    return run(options)


def _fails(place: Place, options: argparse.Namespace) -> bool:
    """Whether ``options`` name a service of which something fails, and no container of it."""
    kind, _, name = options.object.rpartition("/")
    if options.container or options.previous or kind in ("pod", "job"):
        return False
    try:
        service = place.get(KIND, namespace_of(options, place), name)
        return any(source.why for source in _of_service(place, service, None))
    except CommandError:
        return False


def find_sources(place: Place, namespace: str, name: str, container: str | None) -> tuple[bool, list[Source]]:
    """What ``name`` stands for: a pod, or a service (then the first is True): of that what fails, causes first, else
    all engines and routers, or those that have ``container``.

    Raises:
        CommandError: there is no such thing, or it has no such container.
    """
    kind, _, bare_name = name.rpartition("/")
    if kind not in ("pod", "pods", "po"):
        try:
            service = the_service(place, namespace, bare_name)
        except NotFound:
            if kind:
                raise
        else:
            return True, _of_service(place, service, container)
    try:
        pod = place.get("Pod", namespace, bare(name))
    except NotFound:
        raise NotFound(f'there is no LLMService and no pod "{bare(name)}" in namespace {namespace}') from None
    return False, [_of_pod(pod, container)]


def _of_pod(pod: Object, container: str | None) -> Source:
    states = list(podutil.containers(pod))
    bad = next((state for state in states if failing(state)), None)
    chosen = container or (bad.name if bad else pod["spec"]["containers"][0]["name"])
    if container and not podutil.container_spec(pod, container):
        each = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
        known = ", ".join(entry["name"] for entry in each)
        raise CommandError(f'container "{container}" is not in pod "{pod["metadata"]["name"]}": it has {known}')
    return Source(pod, chosen, words(bad) if bad and bad.name == chosen else "")


def _of_service(place: Place, service: Object, container: str | None) -> list[Source]:
    pods = pods_of(place, service)
    if container:
        found = [Source(pod, container) for pod in pods if podutil.container_spec(pod, container)]
        if not found:
            raise CommandError(f'no pod of {service["metadata"]["name"]} has a container "{container}"')
        return found
    by_name = {pod["metadata"]["name"]: pod for pod in pods}
    bad = [
        Source(by_name[each.pod], each.container, f"{each.reason}: {each.message}")
        for each in troubles(service)
        if each.pod in by_name and each.container and podutil.container(by_name[each.pod], each.container)
    ]
    known = {(source.pod["metadata"]["name"], source.container) for source in bad}
    bad += [
        Source(pod, state.name, words(state))
        for pod in pods
        for state in podutil.containers(pod)
        if failing(state) and (pod["metadata"]["name"], state.name) not in known
    ]
    now = [source for source in bad if (state := podutil.container(source.pod, source.container)) and failing(state)]
    chosen = now or [
        Source(pod, _main(pod))
        for role in (ENGINE_ROLES, (ROLE_ROUTER,))
        for pod in pods
        if podutil.role(pod) in role and any(True for _ in podutil.containers(pod))
    ]
    if not chosen:
        raise CommandError(f"{service['metadata']['name']} has no pods with a log yet; `status` says why")
    return chosen


def _main(pod: Object) -> str:
    """The container that has something to say: an init container that runs, else the first of the others."""
    running = next((state.name for state in podutil.containers(pod) if state.init and state.running), None)
    return running or str(pod["spec"]["containers"][0]["name"])


def _print(place: Place, source: Source, several: bool, previous: bool, tail: int | None) -> bool:
    """Print one log; whether there is none."""
    if several or source.why:
        print(f"==> {one_line(source.title)}", file=sys.stderr, flush=True)
    state = podutil.container(source.pod, source.container)
    # A container that has just been started anew has nothing to say of why it failed.
    fresh = not previous and bool(source.why) and state is not None and state.running and state.restarts > 0
    try:
        data = place.log(source.pod, source.container, LogRange(previous=previous or fresh, tail=tail))
    except CommandError as error:
        print(f"error: {safe(error)}", file=sys.stderr, flush=True)
        return True
    if text := data.decode(errors="replace"):
        print(safe(text.replace("\r\n", "\n")), end="" if text.endswith("\n") else "\n", flush=True)
    return False


def _follow(place: Place, sources: list[Source], tail: int | None) -> None:
    """Print all logs as they grow, line by line, until they end or Ctrl-C."""
    if len(sources) > _MOST_FOLLOWED:
        raise CommandError(f"{len(sources)} logs are too many to follow at once: name a pod, or -c CONTAINER")
    lines: queue.Queue[tuple[Source, str | None]] = queue.Queue(10_000)

    def read(source: Source) -> None:
        try:
            for line in split_lines(place.follow(source.pod, source.container, tail)):
                lines.put((source, line))
        except CommandError as error:
            lines.put((source, f"error: {error}"))
        lines.put((source, None))

    for source in sources:
        print(f"==> {one_line(source.title)}", file=sys.stderr, flush=True)
        threading.Thread(target=read, args=(source,), daemon=True).start()
    open_logs = len(sources)
    while open_logs:
        source, line = lines.get()
        if line is None:
            open_logs -= 1
            continue
        prefix = f"[{source.pod['metadata']['name']}] " if len(sources) > 1 else ""
        print(safe(prefix + line), flush=True)


def split_lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """The whole lines of a log that comes in pieces; at its end the rest."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace").removesuffix("\r")
    if rest:
        yield rest.decode(errors="replace")
