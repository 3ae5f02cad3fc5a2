"""The configuration file a router watches. The operator writes it (a ConfigMap); a person may write it by hand."""

from typing import Any, Literal

import msgspec

PolicyName = Literal[
    "auto",
    "round-robin",
    "random",
    "power-of-two",
    "least-request",
    "least-token",
    "prefix",
    "kv-aware",
    "lora-affinity",
    "session",
    "consistent-hash",
    "external",
]
EngineKind = Literal["blade", "vllm", "sglang"]


class EndpointConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
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
    service: str = ""
    """The service it is a replica of, where one router serves several; models name it."""
    engine: EngineKind = "blade"
    """Who wrote it: how its load, its prompt cache and its models are asked for."""
    kv_events: str = ""
    """ZeroMQ address of a vLLM or SGLang engine's KV events, e.g. ``tcp://10.0.0.7:5557``."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Upper bounds; 0 means none."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    """Prompt and answer together: reserved from ``max_tokens`` when a request starts, settled from its usage."""
    concurrent: int = 0
    """Requests at the same time, those that wait in a queue included."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model clients may name."""

    name: str
    aliases: tuple[str, ...] = ()
    """Other names for it; the engine is asked for ``name``."""
    service: str = ""
    """Whose endpoints serve it; empty: those without a service."""
    defaults: dict[str, Any] = {}
    """Fields for requests that do not set them, e.g. ``{"temperature": 0.6}``: of chats, completions and responses."""
    max_tokens: int = 0
    """The most tokens a request may ask for; 0: the engine decides."""
    limits: Limits = Limits()
    """For all clients of the model together."""


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The queue of a service: what waits in the router while its engines are busy."""

    endpoint_requests: int = 0
    """Requests an engine gets at the same time, beyond which they queue here; 0: engines queue, the router does not."""
    max_requests: int = 2048
    max_bytes: int = 256 << 20
    """Size of the queued bodies together."""
    max_age: float = 60.0
    """Seconds after which a queued request gets a 503."""


class HoldConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Requests that came while no engine is ready (a service scaled to zero, a first start)."""

    max_requests: int = 0
    """0: none is held, a request without an engine gets a 503 at once."""
    max_bytes: int = 64 << 20
    max_age: float = 600.0
    """Seconds after which a held request gets a 503."""
    heartbeat: float = 5.0
    """Seconds between the comments that keep a held stream's connection alive."""


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything a router may change without a restart."""

    endpoints: tuple[EndpointConfig, ...] = ()
    policy: PolicyName = "auto"
    models: tuple[ModelConfig, ...] = ()
    """Empty: any name goes to the engines, and they decide. Names that are not listed go to the only service there is
    (adapters are loaded into engines at any time), or get a 404 where there are several."""
    canary: dict[str, float] = {}
    """Revision → its share of new requests, as weights. Revisions that are not listed share what they would by load;
    empty: no weighting."""
    queue: QueueConfig = QueueConfig()
    hold: HoldConfig = HoldConfig()
    limits: Limits = Limits()
    """For all requests together, whoever asks."""
    anonymous: Limits = Limits()
    """For all requests together when there are no keys."""
    cors_origins: tuple[str, ...] = ()
    """Web pages that browsers may let ask; ``*`` for all. Empty: no CORS headers."""
