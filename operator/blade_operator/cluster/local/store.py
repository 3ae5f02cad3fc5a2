"""The objects, one file each: what an API server and etcd are to a cluster.

One process writes (the control loop, which holds the state folder's lock); everything is kept in memory as well, and
each change is on disk before any subscriber is notified. All methods are synchronous, so a caller never sees half a
change.
"""

from __future__ import annotations

import copy
import random
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from blade_operator.cluster.local import clock, files
from blade_operator.cluster.local.errors import Conflict, NotFound
from blade_operator.cluster.local.merge import merge
from blade_operator.model.objects import Object, Ref

Outcome = Literal["created", "configured", "unchanged"]
Listener = Callable[[Object], None]
Admit = Callable[[Object], Object]

_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_SERVER_FIELDS = ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "managedFields")


def read_objects(folder: Path, kind: str = "*") -> Iterator[Object]:
    """Reads every object in ``folder`` from any process; an object deleted meanwhile is skipped."""
    for path in sorted(folder.glob(f"{kind}/*/*.json")):
        if files.is_aside(path):
            continue
        try:
            yield files.read_json(path)
        except FileNotFoundError:
            continue


def _as_is(obj: Object) -> Object:
    return obj


def matches(obj: Object, labels: Mapping[str, str]) -> bool:
    """Whether ``obj`` carries all of ``labels``."""
    own = obj["metadata"].get("labels") or {}
    return all(own.get(name) == value for name, value in labels.items())


class Store:
    """Objects by kind, namespace and name. It returns copies: changing one changes nothing in the store."""

    def __init__(self, folder: Path, now: Callable[[], datetime] = clock.now) -> None:
        self._folder = folder
        self._now = now
        self._counter_file = folder / "resource-version"
        self._objects: dict[Ref, Object] = {}
        self._listeners: list[Listener] = []
        for aside in folder.glob("*/*/*"):
            if files.is_aside(aside):
                aside.unlink()
        for obj in read_objects(folder):
            self._objects[Ref.of(obj)] = obj
        versions = [int(obj["metadata"]["resourceVersion"]) for obj in self._objects.values()]
        if self._counter_file.exists():
            versions.append(files.read_json(self._counter_file))
        self._version = max(versions, default=0)

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener`` with every object after it was changed or deleted."""
        self._listeners.append(listener)

    def get(self, ref: Ref) -> Object | None:
        """The object, or None."""
        obj = self._objects.get(ref)
        return copy.deepcopy(obj) if obj is not None else None

    def find(self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> list[Object]:
        """All objects of a kind, ordered by namespace and name."""
        found = [
            obj
            for ref, obj in self._objects.items()
            if ref.kind == kind and namespace in (None, ref.namespace) and matches(obj, labels or {})
        ]
        found.sort(key=lambda obj: (obj["metadata"]["namespace"], obj["metadata"]["name"]))
        return copy.deepcopy(found)

    def uids(self) -> set[str]:
        """The uids of all objects."""
        return {obj["metadata"]["uid"] for obj in self._objects.values()}

    def everything(self) -> list[Object]:
        """All objects."""
        return copy.deepcopy(list(self._objects.values()))

    def create(self, obj: Object) -> Object:
        """Add a new object; ``metadata.generateName`` gives it a name.

        Raises:
            Conflict: the name is taken or cannot be one.
        """
        obj = copy.deepcopy(obj)
        metadata = obj["metadata"]
        metadata.setdefault("namespace", "default")
        if "name" not in metadata:
            metadata["name"] = metadata["generateName"] + "".join(random.choices(_SUFFIX, k=5))
        if not _NAME.fullmatch(metadata["name"]) or not _NAME.fullmatch(metadata["namespace"]):
            raise Conflict(
                f"metadata.name {metadata['name']!r} in namespace {metadata['namespace']!r}: use lower-case letters, "
                "digits, '-' and '.', beginning and ending with a letter or digit"
            )
        ref = Ref.of(obj)
        if ref in self._objects:
            raise Conflict(f"{ref.kind} {ref.namespace}/{ref.name} exists already")
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = clock.stamp(self._now())
        if "spec" in obj:
            metadata["generation"] = 1
        self._put(ref, obj)
        return copy.deepcopy(self._objects[ref])

    def apply(self, obj: Object, manager: str, admit: Admit = _as_is) -> tuple[Object, Outcome]:
        """Create ``obj``, or make its fields those of ``manager`` (see ``merge``). Status is not touched.

        ``admit`` sees the result before it is stored: it fills in defaults, or raises.
        """
        obj = copy.deepcopy(obj)
        obj.pop("status", None)
        obj["metadata"].setdefault("namespace", "default")
        for name in _SERVER_FIELDS:
            obj["metadata"].pop(name, None)
        applied = copy.deepcopy(obj)
        ref = Ref.of(obj)
        live = self._objects.get(ref)
        if live is None:
            obj["metadata"]["managedFields"] = [_managed(manager, applied)]
            return self.create(admit(obj)), "created"
        entries = {entry["manager"]: entry for entry in live["metadata"].get("managedFields", [])}
        before = entries[manager]["applied"] if manager in entries else None
        merged = admit(copy.deepcopy(merge(live, before, obj)))
        entries[manager] = _managed(manager, applied)
        merged["metadata"]["managedFields"] = list(entries.values())
        changed = self._replace(ref, live, merged)
        return copy.deepcopy(self._objects[ref]), "configured" if changed else "unchanged"

    def update(self, ref: Ref, change: Callable[[Object], None], admit: Admit = _as_is) -> Object:
        """Let ``change`` edit the object in place (a copy of it), and keep what ``admit`` makes of the result.

        Raises:
            NotFound: there is no such object.
        """
        live = self._objects.get(ref)
        if live is None:
            raise NotFound(f'{ref.kind.lower()} "{ref.name}" not found in namespace {ref.namespace}')
        edited = copy.deepcopy(live)
        change(edited)
        self._replace(ref, live, admit(edited))
        return copy.deepcopy(self._objects[ref])

    def write_status(self, ref: Ref, status: Object) -> bool:
        """Replace the status alone; False when the object is gone. An equal status writes nothing."""
        live = self._objects.get(ref)
        if live is None:
            return False
        if live.get("status") != status:
            self._put(ref, {**live, "status": copy.deepcopy(status)})
        return True

    def delete(self, ref: Ref, grace: float | None = None) -> None:
        """Remove the object; a Pod is only marked, with its grace period, and the kubelet removes it when it ended.

        ``grace`` (seconds) replaces the pod's own; a second call may shorten it, never lengthen it.
        """
        live = self._objects.get(ref)
        if live is None:
            return
        if ref.kind != "Pod":
            self.remove(ref)
            return
        seconds = grace if grace is not None else live["spec"].get("terminationGracePeriodSeconds", 30)
        metadata = live["metadata"]
        if "deletionTimestamp" in metadata and metadata["deletionGracePeriodSeconds"] <= seconds:
            return
        deadline = clock.stamp(self._now() + timedelta(seconds=seconds))
        marked = {**metadata, "deletionTimestamp": deadline, "deletionGracePeriodSeconds": seconds}
        self._put(ref, {**live, "metadata": marked})

    def remove(self, ref: Ref) -> None:
        """Remove the object at once, whatever it is."""
        obj = self._objects.pop(ref, None)
        if obj is None:
            return
        self._version += 1
        files.write_json(self._counter_file, self._version, durable=False)
        self._path(ref).unlink(missing_ok=True)
        self._notify(obj)

    def _replace(self, ref: Ref, live: Object, new: Object) -> bool:
        if new == live:
            return False
        if "spec" in new and new["spec"] != live.get("spec"):
            new["metadata"]["generation"] = live["metadata"].get("generation", 0) + 1
        self._put(ref, new)
        return True

    def _put(self, ref: Ref, obj: Object) -> None:
        self._version += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        files.write_json(self._path(ref), obj)
        self._objects[ref] = obj
        self._notify(obj)

    def _path(self, ref: Ref) -> Path:
        return self._folder / ref.kind / ref.namespace / f"{ref.name}.json"

    def _notify(self, obj: Object) -> None:
        for listener in self._listeners:
            listener(obj)


def _managed(manager: str, applied: Any) -> Object:
    return {"manager": manager, "operation": "Apply", "applied": applied}
