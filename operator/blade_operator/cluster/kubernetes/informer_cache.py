"""The informer cache: every watched object, trimmed and packed, found by the service it belongs to.

A thousand services have some 17,000 objects: packed they take a tenth of what they would as Python dictionaries, and
a reconcile unpacks those of one service only.

Objects come from watch events, from sweeps and from the responses to this process's own writes, in any order; resource
versions of one kind grow, so an older state never replaces a newer one. Only a sweep that has proof that the server's
history was rewritten (an etcd restore) may put an older one: `replace` and `forget`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from blade_operator.cluster.kubernetes.trim import trim
from blade_operator.model.objects import Key, Object, Ref
from blade_protocol.labels import ADAPTER_KIND, KIND, NAME, OWN_KINDS

_TOMBSTONES = 2048
"""Deleted objects whose version is still known: responses to writes are late by seconds at most."""
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True, slots=True)
class CachedObject:
    """One object."""

    version: int
    data: bytes
    """The trimmed object; of one of our kinds, without its status."""
    status: bytes = b""
    """Of one of our kinds: written by the operator itself, so that a change of it triggers no reconcile."""
    uid: str = ""
    """Of one of our kinds."""

    def unpack(self) -> Object:
        """The trimmed object."""
        obj: Object = _unpack(self.data)
        if self.status:
            obj["status"] = _unpack(self.status)
        return obj


class InformerCache:
    """All watched objects, and the listeners to notify when those of a service change."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[Ref, CachedObject]] = {}
        self._keys: dict[Ref, Key] = {}
        self._selecting: set[Key] = set()
        """Services that select LoRAAdapters."""
        self._tombstones: dict[Ref, int] = {}
        """Versions at which objects were deleted: the response to an earlier write may come after that event."""
        self._listeners: list[Callable[[Key], None]] = []

    def subscribe(self, listener: Callable[[Key], None]) -> None:
        """Call ``listener`` with the service of every object that changed or was deleted."""
        self._listeners.append(listener)

    def get(self, ref: Ref) -> CachedObject | None:
        """One object."""
        key = self._keys.get(ref)
        return self._by_key[key].get(ref) if key is not None else None

    def children(self, key: Key) -> dict[str, list[Object]]:
        """All objects of a service, itself included, by kind; each kind in order of names."""
        found: dict[str, list[Object]] = {}
        for ref, cached in sorted(self._by_key.get(key, {}).items()):
            found.setdefault(ref.kind, []).append(cached.unpack())
        return found

    def lora_adapters(self, namespace: str, limit: int) -> list[Object]:
        """LoRAAdapters of a namespace, the first ``limit`` in order of names."""
        found = sorted(self._by_key.get(Key(namespace, ""), {}).items())
        return [cached.unpack() for _, cached in found[:limit]]

    def services(self) -> list[Key]:
        """Every LLMService; first those whose latest spec has not been reconciled yet."""
        settled = {}
        for key in self._by_key:
            cached = self.get(Ref(KIND, key.namespace, key.name))
            if cached is not None:
                service = cached.unpack()
                observed = (service.get("status") or {}).get("observedGeneration")
                settled[key] = observed == service["metadata"].get("generation")
        return sorted(settled, key=lambda key: (settled[key], key))

    def refs(self, kind: str, namespace: str | None) -> list[Ref]:
        """The cached objects of ``kind`` (in ``namespace``)."""
        return [ref for ref in self._keys if ref.kind == kind and namespace in (None, ref.namespace)]

    def version(self, ref: Ref) -> int | None:
        """The version known of an object: cached, or as a tombstone; None when nothing is known of it."""
        cached = self.get(ref)
        return cached.version if cached is not None else self._tombstones.get(ref)

    def newest(self, kind: str, namespace: str | None) -> int:
        """The newest version known of any object of ``kind`` (in ``namespace``), deleted ones included; 0: none."""
        cached = (self._by_key[self._keys[ref]][ref].version for ref in self.refs(kind, namespace))
        deleted = (self._tombstones[ref] for ref in self._deleted(kind, namespace))
        return max((*cached, *deleted), default=0)

    def put(self, obj: Object) -> None:
        """Keep ``obj`` (with ``kind``), unless something newer is known or it belongs to no service."""
        ref, key = Ref.of(obj), _key_of(obj)
        version = int(obj["metadata"]["resourceVersion"])
        before = self.get(ref)
        if version <= (before.version if before is not None else self._tombstones.get(ref, 0)):
            return
        if before is not None and self._keys[ref] != key:
            self._drop(ref, version)  # somebody gave it to another service
        if key is None:
            return
        kept = trim(obj)
        status, uid = b"", ""
        if ref.kind in OWN_KINDS:
            status, uid = _pack(kept.pop("status")), str(obj["metadata"].get("uid", ""))
        cached = CachedObject(version, _pack(kept), status, uid)
        self._keys[ref] = key
        self._tombstones.pop(ref, None)
        self._by_key.setdefault(key, {})[ref] = cached
        if ref.kind == KIND and (obj.get("spec") or {}).get("adapterSelector") is not None:
            self._selecting.add(key)
        elif ref.kind == KIND:
            self._selecting.discard(key)
        if before is None or before.data != cached.data:
            self._notify(key)

    def replace(self, obj: Object) -> None:
        """Keep ``obj`` whatever was known before: the server's history was rewritten."""
        self.forget(Ref.of(obj))
        self.put(obj)

    def remove(self, ref: Ref, version: int) -> None:
        """Drop an object that was deleted at ``version``, unless it has been made again since."""
        cached = self.get(ref)
        if cached is None or cached.version <= version:
            self._drop(ref, version)

    def forget(self, ref: Ref) -> None:
        """Drop an object and everything known about its versions."""
        self._drop(ref, 0)
        self._tombstones.pop(ref, None)

    def keep_only(self, kind: str, namespace: str | None, listed: Iterable[Ref], version: int) -> None:
        """Drop what a whole list of ``kind`` (in ``namespace``) at ``version`` did not have."""
        there = set(listed)
        for ref in self.refs(kind, namespace):
            if ref not in there:
                self.remove(ref, version)

    def forget_deleted(self, kind: str, namespace: str | None, version: int) -> None:
        """Drop what is known of deletions after ``version``."""
        for ref in self._deleted(kind, namespace):
            if self._tombstones[ref] > version:
                del self._tombstones[ref]

    def forget_namespace(self, namespace: str) -> None:
        """Drop everything of a namespace that is not watched any more."""
        for ref in {*self._keys, *self._tombstones}:
            if ref.namespace == namespace:
                self.forget(ref)

    def _deleted(self, kind: str, namespace: str | None) -> list[Ref]:
        return [ref for ref in self._tombstones if ref.kind == kind and namespace in (None, ref.namespace)]

    def _drop(self, ref: Ref, version: int) -> None:
        self._tombstones[ref] = max(version, self._tombstones.pop(ref, 0))
        if len(self._tombstones) > _TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]
        key = self._keys.pop(ref, None)
        if key is None:
            return
        if ref.kind == KIND:
            self._selecting.discard(key)
        cached = self._by_key[key]
        del cached[ref]
        if not cached:
            del self._by_key[key]
        self._notify(key)

    def _notify(self, key: Key) -> None:
        keys = [each for each in self._selecting if each.namespace == key.namespace] if not key.name else [key]
        for each in keys:
            for listener in self._listeners:
                listener(each)


def _key_of(obj: Object) -> Key | None:
    """The service that ``obj`` belongs to; of a LoRAAdapter one without a name, as it is of all in its namespace."""
    metadata = obj["metadata"]
    if obj["kind"] == ADAPTER_KIND:
        return Key(metadata["namespace"], "")
    name = metadata["name"] if obj["kind"] == KIND else (metadata.get("labels") or {}).get(NAME)
    return Key(metadata["namespace"], name) if name else None
