"""An engine's state and KV events, as served on its internal port."""

from typing import Final

import msgspec

from blade_protocol.adapters import AdapterCounts, AdapterTier

KV_DIGEST_BYTES: Final = 8
"""Bytes of a KV block's digest on the wire: enough to keep all blocks of a fleet distinct."""


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Use of the device's memory, in bytes, and the capacity of the KV cache."""

    weights: int
    activation_peak: int
    kv_cache: int
    kv_block_bytes: int
    kv_blocks: int
    kv_tokens: int
    max_model_len: int
    concurrent_at_max_len: float
    """How many requests of ``max_model_len`` tokens fit at once."""
    graphs: int = 0
    lora: int = 0
    draft: int = 0
    encoder: int = 0
    """Of images: the encoder cache, and encoding the largest one."""
    device: str = ""
    """Type of the device: ``cpu``, ``cuda``; empty for an engine that does not report it."""
    free: int | None = None
    """Bytes of the device that neither this plan nor another process uses; None on a host, where that changes."""


class SpeculationCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Speculative decoding since the engine started."""

    drafts: int
    """Times that a request got draft tokens."""
    draft_tokens: int
    accepted_tokens: int
    """Draft tokens that the model sampled, too."""
    accepted_per_position: tuple[int, ...] = ()
    """How often the first, second, ... draft token was accepted."""
    failed: bool = False
    """The draft model or head computed what are no numbers; decoding goes on without drafts."""


class ImageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Images since the engine started."""

    encoded: int
    """Computed by the vision tower."""
    hits: int
    """Found in the encoder cache, or on their way into it; what the prefix cache has is not counted."""


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one GPU, in bytes."""

    name: str
    used: int
    """By all processes on it."""
    total: int


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """Response of ``GET /internal/state``."""

    model: str
    revision: str
    ready: bool
    draining: bool
    running: int
    """Requests that own a slot."""
    waiting: int
    """Requests that wait for a slot."""
    max_running: int = 0
    """Number of slots."""
    standby: bool = False
    """It drains, no request is left, and the memory of the KV cache was given back."""
    max_waiting: int | None = None
    """Requests that may wait beyond those that have a slot; it refuses further ones with a 503. None: any number."""
    kv_blocks_total: int
    kv_blocks_free: int
    """Free blocks, those that still hold a reusable prefix included."""
    prompt_tokens_total: int
    cached_tokens_total: int
    """Prompt tokens that came from the prefix cache."""
    generation_tokens_total: int
    preemptions_total: int
    epoch: str
    """Changes when the engine process starts anew: counters and caches are reset."""
    sequence: int
    """Grows by one with every event of one epoch."""
    memory: MemoryPlan | None = None
    adapters: tuple[str, ...] = ()
    """Names of the LoRA adapters that answer requests, loaded or registered, sorted."""
    adapter_digests: tuple[str, ...] = ()
    """Of the content of each, in hexadecimal; empty where its weights were not read yet."""
    adapter_tiers: tuple[AdapterTier, ...] = ()
    """Where the weights of each are."""
    max_adapters: int = 0
    """Adapters that host memory has room for; 0: the engine serves none."""
    adapter_counts: AdapterCounts | None = None
    """None: the engine serves no adapters."""
    speculation: SpeculationCounts | None = None
    """None: decoding is not speculative."""
    images: ImageCounts | None = None
    """None: the engine takes no images."""
    gpus: tuple[GpuMemory, ...] = ()
    """Those of the process that schedules; none on CPU."""


class KVBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of an engine's prefix cache. Digests are concatenated (base64 in JSON)."""

    sequence: int
    """Grows by one with every batch of one epoch. A reader whose copy is at the number before applies it, one whose
    copy is at this number or beyond has it already, any other one takes a snapshot."""
    stored: bytes = b""
    removed: bytes = b""
    lost: bool = False
    """Changes were lost in the engine: take a snapshot."""


class KVSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Response of ``GET /internal/kv``: every block in the prefix cache."""

    epoch: str
    sequence: int
    """Number of the last batch in it."""
    digests: bytes


class EngineEvent(EngineState, frozen=True, kw_only=True):
    """Each event of ``GET /internal/events``: the state, and the change of the prefix cache.

    The first event's batch is empty and gives the cache's sequence number.
    """

    kv: KVBatch | None = None


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /internal/drain``. Idempotent; ``draining=False`` takes the replica back in."""

    draining: bool = True
    standby: bool = False
    """Once no request is left, give back the memory of the KV cache, too, whose prefixes are forgotten. The weights
    stay: the replica can be taken back in at once. Only with ``draining``."""
