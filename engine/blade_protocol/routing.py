"""The configuration file that a router watches. The operator writes it (a ConfigMap); a person may write it by hand."""

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
    """Display name (the pod's name); the URL when empty."""
    internal_url: str = ""
    """Base URL of the internal port; public port + 1000 on the same host when empty."""
    revision: str = ""
    draining: bool = False
    """Running requests finish; no new one is routed to it."""
    starting: bool = False
    """It is not known to be ready: no request is routed to it before it passes the router's health check."""
    service: str = ""
    """The service it is a replica of, where one router serves several; models name it."""
    engine: EngineKind = "blade"
    """The engine's software, which decides how its load, prefix cache and models are queried."""
    kv_events: str = ""
    """ZeroMQ address of a vLLM or SGLang engine's KV events, e.g. ``tcp://10.0.0.7:5557``."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Upper bounds; 0 means none."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    """Prompt and completion together: reserved from ``max_tokens`` when a request starts, settled from its usage."""
    concurrent: int = 0
    """Concurrent requests, queued ones included."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model that clients may name."""

    name: str
    aliases: tuple[str, ...] = ()
    """Other names for it; the engine receives ``name``."""
    service: str = ""
    """Whose endpoints serve it; empty: those without a service."""
    defaults: dict[str, Any] = {}
    """Fields for requests that do not set them, e.g. ``{"temperature": 0.6}``: for chat, completions and responses."""
    max_tokens: int = 0
    """Upper bound of a request's ``max_tokens``; 0: the engine decides."""
    limits: Limits = Limits()
    """Limits of all clients of the model together."""


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A LoRA adapter that engines have, or are about to have."""

    name: str
    """As engines list it."""
    model: str = ""
    """What requests call it; its name when empty. Adapters of one model share its requests by weight."""
    weight: float = 1.0
    """Its share of the model's requests, beside the others' weights."""
    service: str = ""
    """Whose engines have it; empty: those without a service."""


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The request queue of a service: requests that wait in the router while its engines are busy (backpressure)."""

    enabled: bool = True
    """False: only engines queue."""
    endpoint_requests: int = 0
    """Concurrent requests of an engine, beyond which they queue in the router; 0: as many as it reports to run."""
    key_share: float = 0.875
    """The part of all engines' slots that one API key may hold, so that others find some free; 1: all of them. It
    matters where there are several keys."""
    max_requests: int = 2048
    max_bytes: int = 256 << 20
    """Total size of the queued bodies."""
    max_age: float = 60.0
    """Seconds after which a queued request gets a 503."""


class HoldConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The pending-request buffer: requests that arrive while no engine is ready (scaled to zero, a first start)."""

    max_requests: int = 0
    """0: no buffer, a request without an engine gets a 503 at once."""
    max_bytes: int = 64 << 20
    max_age: float = 600.0
    """Seconds after which a held request gets a 503."""
    heartbeat: float = 5.0
    """Seconds between the comments that keep a held stream's connection alive."""
    scaled_to_zero: bool = False
    """Somebody has scaled the service to zero, and nobody will wake it: what finds no engine gets a 503 at once."""
    wakes: bool = False
    """An engine is started for what is held: a service without any sleeps, and is as healthy as one that has some."""


class ShadowConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Shadow traffic: copies of requests for a revision of weight 0. Their answers are compared, and never sent."""

    revision: str
    share: float
    """Percent of the requests."""


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything that a router reloads without a restart."""

    endpoints: tuple[EndpointConfig, ...] = ()
    policy: PolicyName = "auto"
    models: tuple[ModelConfig, ...] = ()
    """Empty: any name goes to the engines, and they decide. Names that are not listed go to the only service there is
    (adapters are loaded into engines at any time), or get a 404 where there are several."""
    adapters: tuple[AdapterConfig, ...] = ()
    """LoRA adapters that were declared. A request for one that no engine has yet, or any more, gets a 503 instead of an
    engine's 404."""
    canary: dict[str, float] = {}
    """Revision → its share of new requests, as weights. Revisions that are not listed share what they would by load;
    empty: no weighting."""
    shadow: ShadowConfig | None = None
    """Which revision gets copies of requests, as long as it and others have weights in ``canary``."""
    queue: QueueConfig = QueueConfig()
    hold: HoldConfig = HoldConfig()
    limits: Limits = Limits()
    """Limits of all requests together, whatever their key."""
    anonymous: Limits = Limits()
    """Limits of all requests together when no keys are configured."""
    share_prefix_cache: bool = False
    """Keys share what engines have cached of prompts. Otherwise every key has its own part, so that nobody can find out
    by time or usage what others have asked; without keys all clients share."""
    cors_origins: tuple[str, ...] = ()
    """Allowed origins of browsers' requests; ``*`` for all. Empty: no CORS headers."""
