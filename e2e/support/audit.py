"""The API server's audit log: who requested what, as the server itself recorded it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class Request:
    """One request. ``subresource``, ``namespace`` and ``name`` are empty where there is none; ``group`` is for core."""

    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    """HTTP status; of a watch that still runs, the one it began with."""
    at: datetime
    agent: str

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES


class AuditLog:
    """Reads ``path`` anew at every query; a request is in the file before its response is sent."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> int:
        """A position for ``since``: everything requested from now on."""
        return self.path.stat().st_size

    def requests(self, user: str | None = None, since: int = 0) -> list[Request]:
        """Requests in order of their responses, each once; ``user``: an exact name (`service_account` makes one)."""
        found: dict[str, Request] = {}
        for event in self._events(since):
            if user is None or event["user"].get("username", "") == user:
                found.setdefault(event["auditID"], _request(event))
        return list(found.values())

    def _events(self, since: int) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as log:
            log.seek(since)
            for line in log:
                if line.endswith(b"\n"):  # the last one may be half written
                    yield json.loads(line)


def service_account(namespace: str, name: str) -> str:
    """The user name of a ServiceAccount."""
    return f"system:serviceaccount:{namespace}:{name}"


def _request(event: dict[str, Any]) -> Request:
    target = event.get("objectRef", {})
    return Request(
        user=event["user"].get("username", ""),
        verb=event["verb"],
        group=target.get("apiGroup", ""),
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
        at=datetime.fromisoformat(event["requestReceivedTimestamp"].replace("Z", "+00:00")),
        agent=event.get("userAgent", ""),
    )
