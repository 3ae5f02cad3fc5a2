"""Kubernetes Events about a service, as ``kubectl describe`` shows them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from blade_operator.model.objects import Object
from blade_operator.model.plan import EventRecord

COMPONENT = "bladellm-operator"
_LONGEST_MESSAGE = 1024


def event_object(service: Object, version: int, event: EventRecord, now: datetime) -> Object:
    """An Event about ``service`` as it was at resource version ``version``.

    The name depends on both and on the words, so that an operator which starts again after it emitted an Event, and
    before it wrote the status that remembers it, does not emit it twice.
    """
    metadata = service["metadata"]
    words = f"{metadata['uid']} {version} {event.type} {event.reason} {event.message}"
    time = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name'][:200]}.{hashlib.sha256(words.encode()).hexdigest()[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": service["apiVersion"],
            "kind": service["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": str(version),
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:_LONGEST_MESSAGE],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
