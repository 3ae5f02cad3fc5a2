"""The configuration file a router watches. The operator writes it (a ConfigMap); a person may write it by hand."""

from typing import Literal

import msgspec

PolicyName = Literal["auto", "round-robin", "least-request"]


class EndpointConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine replica."""

    url: str
    """Base URL of the public port, e.g. ``http://10.0.0.7:8081``."""
    name: str = ""
    """What people call it (the pod's name); the URL when empty."""
    internal_url: str = ""
    """Base URL of the internal port; public port + 1000 on the same host when empty."""
    revision: str = ""
    draining: bool = False
    """Finish what it has, choose it for nothing new."""


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a router may change without a restart."""

    endpoints: tuple[EndpointConfig, ...] = ()
    policy: PolicyName = "auto"
    models: tuple[str, ...] = ()
    """Names this service answers to; empty: any, and the engine decides."""
