"""The bundle of ``doctor``: a tar archive of objects, events, logs, metrics and versions, without secrets."""

from __future__ import annotations

import io
import json
import platform
import tarfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, TypeVar

from blade_operator.cli.errors import CommandError
from blade_operator.cli.manifests import dump
from blade_operator.kubectl.places.place import LogRange, Place
from blade_operator.kubectl.redact import redact_object
from blade_operator.kubectl.scrape import fetch
from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.redact_text import redact_text
from blade_protocol import paths
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER

T = TypeVar("T")
LOG_LINES: Final = 2000
LOG_BYTES: Final = 1024 * 1024
"""Of one log."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""Of all files together, before compression; what comes after it is left out and named."""


class Bundle:
    """A gzip-compressed tar archive that is written file by file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.missing: list[str] = []
        """What could not be had, and why."""
        self._folder = path.name.removesuffix(".tar.gz")
        self._file = path.open("xb")
        path.chmod(0o600)
        self._archive = tarfile.open(fileobj=self._file, mode="w:gz")  # noqa: SIM115 - closed by `close`

    def close(self) -> None:
        """Write what is missing, and the end of the archive."""
        self.add("missing.txt", "".join(f"{line}\n" for line in self.missing) or "nothing\n", always=True)
        self._archive.close()
        self._file.close()

    def add(self, name: str, text: str, *, always: bool = False) -> None:
        """Add a file; its text has passed `redact` already."""
        data = text.encode("utf-8", "replace")
        if self.size + len(data) > MOST_BYTES and not always:
            self.missing.append(f"{name}: the bundle has {MOST_BYTES} bytes already")
            return
        self.size += len(data)
        entry = tarfile.TarInfo(f"{self._folder}/{name}")
        entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
        self._archive.addfile(entry, io.BytesIO(data))

    def attempt(self, what: str, call: Callable[[], T]) -> T | None:
        """The result of ``call``; None when it is refused, and that goes into the list of what is missing."""
        try:
            return call()
        except CommandError as error:
            self.missing.append(f"{what}: {redact_text(str(error))}")
            return None


def add_objects(bundle: Bundle, objects: Iterable[Object]) -> None:
    """Each object in a file of its own, without secrets."""
    for obj in objects:
        metadata = obj["metadata"]
        name = f"objects/{metadata.get('namespace', '_')}/{obj['kind']}/{metadata['name']}.yaml"
        bundle.add(name, dump(redact_object(obj)))


def add_events(bundle: Bundle, events: Iterable[Object]) -> None:
    """All events in one file, a line each."""
    lines = []
    for each in sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or "")):
        about = each.get("involvedObject") or {}
        words = [each.get("lastTimestamp") or each.get("eventTime") or "", each.get("type"), each.get("reason")]
        words += [f"{about.get('kind', '')}/{about.get('name', '')}", f"x{each.get('count') or 1}", each.get("message")]
        lines.append(redact_text("  ".join(" ".join(str(word).split()) for word in words)) + "\n")
    bundle.add("events.txt", "".join(lines))


def add_logs(bundle: Bundle, place: Place, pods: Iterable[Object]) -> None:
    """The last lines of each container, and of the run before its last restart."""
    for pod in pods:
        for state in podutil.containers(pod):
            for previous in (False, True) if state.restarts else (False,):
                part = LogRange(previous=previous, tail=LOG_LINES, limit=LOG_BYTES)
                name = f"logs/{pod['metadata']['name']}/{state.name}{'.previous' if previous else ''}.log"
                data = bundle.attempt(name, partial(place.log, pod, state.name, part))
                if data is not None:
                    bundle.add(name, redact_text(data[-LOG_BYTES:].decode(errors="replace")))


def add_metrics(bundle: Bundle, place: Place, pods: Iterable[Object]) -> None:
    """The metrics of engines and routers, and what routers say of their engines."""
    wanted = {ROLE_ENGINE: [("http", paths.METRICS)], ROLE_ROUTER: [("admin", paths.METRICS), ("admin", paths.STATUS)]}
    for pod in pods:
        if not any(state.running and not state.init for state in podutil.containers(pod)):
            continue
        for port, path in wanted.get(podutil.role(pod), ()):
            name = f"metrics/{pod['metadata']['name']}{path}.txt"
            data = bundle.attempt(name, partial(_page, place, pod, port, path))
            if data is not None:
                bundle.add(name, redact_text(data.decode(errors="replace")))


def _page(place: Place, pod: Object, port: str, path: str) -> bytes:
    with place.reach(pod, port) as reached:
        return fetch(reached, path)


def add_versions(bundle: Bundle, place: Place, pods: Iterable[Object]) -> None:
    """The versions of everything that takes part."""
    try:
        own = version("bladellm")
    except PackageNotFoundError:
        own = "unknown"
    found: dict[str, Any] = {"kubectl-llm": own, "python": platform.python_version()}
    found |= bundle.attempt("versions", place.versions) or {}
    images = {
        redact_text(f"{each.get('image', '')} {each.get('imageID', '')}").strip()
        for pod in pods
        for field in ("initContainerStatuses", "containerStatuses")
        for each in pod.get("status", {}).get(field) or ()
    }
    bundle.add("versions.json", json.dumps(found | {"images": sorted(images)}, indent=2) + "\n")
