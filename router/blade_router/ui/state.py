"""What the web UI gets by ``/ui/stream``. Its other side is ``router/ui/src/state/types.ts``.

Names are in camel case, moments are seconds since 1970, durations seconds; None is what is unknown.
"""

from typing import Literal

import msgspec

Percentiles = tuple[float, float, float]
"""p50, p90, p99."""
EndpointState = Literal["ready", "starting", "draining", "ejected", "unreachable"]


class Model(msgspec.Struct, frozen=True):
    """A name that requests may put into ``model``."""

    id: str
    kind: Literal["base", "adapter", "alias"]
    parent: str | None = None


class RouterInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The router that a page is served by."""

    version: str
    started: float
    policy: str
    workers: int
    replicas: int
    keyed: bool
    """Requests need an API key."""
    scope: Literal["all", "own"]
    """``own``: of requests and tokens only those of the viewer's key are shown."""
    key: str | None
    """The name of that key."""
    models: tuple[Model, ...]


class Gpu(msgspec.Struct, frozen=True, rename="camel"):
    """A GPU of an engine, in bytes."""

    name: str
    memory_used: int
    memory_total: int


class EndpointRow(msgspec.Struct, frozen=True, rename="camel"):
    """One engine replica."""

    name: str
    address: str
    state: EndpointState
    why: str | None
    """Why it is not ready."""
    revision: str | None
    weight: float
    models: tuple[str, ...]
    adapters: tuple[str, ...]
    in_flight: int
    """Requests of this router on it."""
    running: int | None = None
    """This and what follows as the engine reports it."""
    waiting: int | None = None
    max_running: int | None = None
    kv_used: float | None = None
    """0 to 1."""
    kv_tokens: int | None = None
    kv_tokens_total: int | None = None
    prefix_hit: float | None = None
    """Of the prompt tokens of the last minute, 0 to 1."""
    acceptance: float | None = None
    """Of draft tokens of the last minute, 0 to 1."""
    tokens_per_second: float | None = None
    gpus: tuple[Gpu, ...] = ()


class Point(msgspec.Struct, frozen=True, rename="camel"):
    """One second of traffic."""

    time: float
    rate: float
    """Requests that came in it."""
    in_flight: int
    queue: int
    """Requests that wait for their turn or for an engine."""
    errors: float
    """Requests that ended with an error of the router or an engine (5xx, 429)."""
    ttft: Percentiles | None
    """Of the last minute; so is what follows but tokens."""
    tpot: Percentiles | None
    prefix_hit: float | None
    acceptance: float | None
    tokens: dict[str, float]
    """Completion tokens by the name of the key."""


class AttemptRow(msgspec.Struct, frozen=True):
    """One try of a request at an endpoint."""

    endpoint: str
    at: float
    """Seconds after the request began."""
    outcome: str


class RequestRow(msgspec.Struct, frozen=True, rename="camel"):
    """One request. All but ``started`` that is a time is in seconds after that."""

    id: str
    trace_id: str | None
    started: float
    key: str | None
    model: str
    path: str
    stream: bool
    status: int | None
    """None: it is in flight."""
    error: str | None
    endpoint: str | None
    reason: str | None
    """Why the endpoint was chosen."""
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    queued: float | None
    """When it began to wait for its turn or for an engine; None: it did not."""
    chosen: float | None
    first_token: float | None
    end: float | None
    attempts: tuple[AttemptRow, ...]
