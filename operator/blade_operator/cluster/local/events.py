"""Kubernetes Events about objects, counted when they repeat; the latest of each object are kept for an hour."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Literal

from blade_operator.cluster.local import clock
from blade_operator.cluster.local.store import Store
from blade_operator.model.objects import Object, Ref
from blade_protocol.labels import NAME

KEPT_PER_OBJECT = 40
KEPT_FOR = timedelta(hours=1)


class Events:
    """Records Events in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def record(self, about: Object, kind: Literal["Normal", "Warning"], reason: str, message: str, source: str) -> None:
        """Record an Event about ``about``; a repeated one only increases its count."""
        metadata = about["metadata"]
        moment = clock.stamp(clock.now())
        digest = hashlib.sha256(f"{metadata['uid']}{reason}{message}".encode()).hexdigest()[:16]
        ref = Ref("Event", metadata["namespace"], f"{metadata['name']}.{digest}")
        if self._store.get(ref) is not None:
            self._store.update(ref, lambda event: event.update(count=event["count"] + 1, lastTimestamp=moment))
            return
        service = metadata["name"] if about["kind"] == "LLMService" else (metadata.get("labels") or {}).get(NAME, "")
        self._store.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": ref.name, "namespace": ref.namespace, "labels": {NAME: service}},
                "involvedObject": {
                    "apiVersion": about.get("apiVersion", ""),
                    "kind": about["kind"],
                    "name": metadata["name"],
                    "namespace": metadata["namespace"],
                    "uid": metadata["uid"],
                },
                "type": kind,
                "reason": reason,
                "message": message,
                "source": {"component": source},
                "count": 1,
                "firstTimestamp": moment,
                "lastTimestamp": moment,
            }
        )
        self._forget_old(metadata["uid"])

    def _forget_old(self, uid: str) -> None:
        events = sorted(self._store.find("Event"), key=lambda event: str(event["lastTimestamp"]))
        horizon = clock.stamp(clock.now() - KEPT_FOR)
        of_object = [event for event in events if event["involvedObject"]["uid"] == uid]
        surplus = of_object[: max(0, len(of_object) - KEPT_PER_OBJECT)]
        for event in [event for event in events if event["lastTimestamp"] < horizon] + surplus:
            self._store.remove(Ref.of(event))
