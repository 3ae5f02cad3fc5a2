"""The operator's report of the service, as this process got it last.

It is kept as it came, and only looked into as far as a client with a key may see it.
"""

import time
from typing import Any

import msgspec


class _Condition(msgspec.Struct):
    type: str
    status: str
    reason: str = ""
    lastTransitionTime: str | None = None


class _Revision(msgspec.Struct, omit_defaults=True):
    current: str | None = None
    previous: str | None = None
    updating: bool | None = None


class _Status(msgspec.Struct, omit_defaults=True):
    phase: str | None = None
    desiredReplicas: int | None = None
    replicas: int | None = None
    readyReplicas: int | None = None
    revision: _Revision | None = None
    conditions: list[_Condition] = []


class _Metadata(msgspec.Struct, omit_defaults=True):
    name: str
    namespace: str = "default"
    generation: int | None = None


class _Object(msgspec.Struct):
    """What a client with a key may see of the object."""

    apiVersion: str
    kind: str
    metadata: _Metadata
    spec: dict[str, Any] = {}
    status: _Status = msgspec.field(default_factory=_Status)


class _Report(msgspec.Struct):
    reported: float
    object: msgspec.Raw
    pods: list[msgspec.Raw]
    events: list[msgspec.Raw]


_decode = msgspec.json.Decoder(_Report).decode
_decode_object = msgspec.json.Decoder(_Object).decode
_encode = msgspec.json.Encoder().encode


class ServiceReport:
    """The last report; none at first."""

    def __init__(self) -> None:
        self.reported_at = 0.0
        """When the operator said it, by its clock; 0: it has said nothing."""
        self.full: bytes | None = None
        """The report, as JSON on one line."""
        self.public: bytes | None = None
        """What a client with a key may see of it: how the service is, and neither spec, pods nor messages, which tell
        of the cluster and of others."""

    def take(self, body: bytes) -> None:
        """Take over a report, unless it is older than the last. Its size is for the caller to bound.

        Raises:
            ValueError: it is none.
        """
        try:
            report = _decode(body)
            obj = _decode_object(report.object)
        except msgspec.DecodeError as error:
            raise ValueError(f"this is no report of a service: {error}") from None
        reported = min(report.reported, time.time() + 60.0)  # a clock that is far ahead must not silence what follows
        if reported < self.reported_at:
            return
        obj.spec = {}
        self.reported_at = reported
        self.full = msgspec.json.format(body, indent=-1)  # an event has no line ends
        self.public = _encode(_Report(report.reported, msgspec.Raw(_encode(obj)), [], []))
