"""Which installation of the operator a service belongs to.

An installation is named after its Lease, ``NAMESPACE/NAME``: all processes that take part in one election are one.
"""

from __future__ import annotations

from blade_operator.model.objects import Object
from blade_protocol.labels import INSTALLATION


def assigned(service: Object) -> str:
    """The installation that the user gave ``service`` to, by annotation; empty when they did not."""
    return str((service["metadata"].get("annotations") or {}).get(INSTALLATION, ""))


def claimed(service: Object) -> str:
    """The installation that has claimed ``service``; empty while none has."""
    return str((service.get("status") or {}).get("installation", ""))
