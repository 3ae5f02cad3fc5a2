"""Every object the operator follows, trimmed and packed, found by the service it belongs to.

A thousand services have some 17,000 objects: packed they take a tenth of what they would as Python dictionaries, and
a look unpacks those of one service only.

Objects come from watches and from the answers to this process's own writes, in any order; resource versions of one
kind grow, so an older state never replaces a newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from blade_operator.cluster.kubernetes.trim import trim
from blade_operator.objects import Key, Object, Ref
from blade_protocol.labels import KIND, NAME

_REMEMBERED = 2048
"""Objects that went, of which the version is still known: answers to writes are late by seconds at most."""
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True, slots=True)
class Record:
    """One object."""

    version: int
    data: bytes
    """The trimmed object; of an LLMService, without its status."""
    status: bytes = b""
    """Of an LLMService: written by the operator itself, so that a change of it is no news."""

    def unpack(self) -> Object:
        """The trimmed object."""
        obj: Object = _unpack(self.data)
        if self.status:
            obj["status"] = _unpack(self.status)
        return obj


class Records:
    """All records, and who wants to know when those of a service change."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[Ref, Record]] = {}
        self._keys: dict[Ref, Key] = {}
        self._gone: dict[Ref, int] = {}
        """When what is not there any more went: the answer to a write before that may come after the news."""
        self._listeners: list[Callable[[Key], None]] = []

    def subscribe(self, listener: Callable[[Key], None]) -> None:
        """Call ``listener`` with the service of every object that changed or went."""
        self._listeners.append(listener)

    def get(self, ref: Ref) -> Record | None:
        """The record of one object."""
        key = self._keys.get(ref)
        return self._by_key[key].get(ref) if key is not None else None

    def of(self, key: Key) -> dict[str, list[Object]]:
        """All objects of a service by kind, each kind in order of names."""
        found: dict[str, list[Object]] = {}
        for ref, record in sorted(self._by_key.get(key, {}).items()):
            found.setdefault(ref.kind, []).append(record.unpack())
        return found

    def services(self) -> list[Key]:
        """Every LLMService; first those of which the latest spec has not been acted on yet."""
        settled = {}
        for key in self._by_key:
            record = self.get(Ref(KIND, key.namespace, key.name))
            if record is not None:
                service = record.unpack()
                seen = (service.get("status") or {}).get("observedGeneration")
                settled[key] = seen == service["metadata"].get("generation")
        return sorted(settled, key=lambda key: (settled[key], key))

    def put(self, obj: Object) -> None:
        """Keep ``obj`` (with ``kind``), unless something newer is known or it belongs to no service."""
        ref, key = Ref.of(obj), _key_of(obj)
        version = int(obj["metadata"]["resourceVersion"])
        before = self.get(ref)
        if version <= (before.version if before is not None else self._gone.get(ref, 0)):
            return
        if before is not None and self._keys[ref] != key:
            self._drop(ref, version)  # somebody gave it to another service
        if key is None:
            return
        kept = trim(obj)
        status = _pack(kept.pop("status")) if ref.kind == KIND else b""
        record = Record(version, _pack(kept), status)
        self._keys[ref] = key
        self._gone.pop(ref, None)
        self._by_key.setdefault(key, {})[ref] = record
        if before is None or before.data != record.data:
            self._tell(key)

    def remove(self, ref: Ref, version: int) -> None:
        """Forget an object that went at ``version``, unless it has come again since."""
        record = self.get(ref)
        if record is None or record.version <= version:
            self._drop(ref, version)

    def keep_only(self, kind: str, namespace: str | None, seen: Iterable[Ref], version: int) -> None:
        """Forget what a whole list of ``kind`` (in ``namespace``) at ``version`` did not have."""
        there = set(seen)
        for ref in list(self._keys):
            if ref.kind == kind and namespace in (None, ref.namespace) and ref not in there:
                self.remove(ref, version)

    def _drop(self, ref: Ref, version: int) -> None:
        self._gone[ref] = max(version, self._gone.pop(ref, 0))
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]
        key = self._keys.pop(ref, None)
        if key is None:
            return
        records = self._by_key[key]
        del records[ref]
        if not records:
            del self._by_key[key]
        self._tell(key)

    def _tell(self, key: Key) -> None:
        for listener in self._listeners:
            listener(key)


def _key_of(obj: Object) -> Key | None:
    metadata = obj["metadata"]
    name = metadata["name"] if obj["kind"] == KIND else (metadata.get("labels") or {}).get(NAME)
    return Key(metadata["namespace"], name) if name else None
