"""What an engine tells about itself on its internal port."""

import msgspec


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where the device's memory went, in bytes, and what the KV cache can hold."""

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


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /internal/state``; also each event of ``GET /internal/events``."""

    model: str
    revision: str
    ready: bool
    draining: bool
    running: int
    """Requests that own a row."""
    waiting: int
    """Requests that wait for one."""
    kv_blocks_total: int
    kv_blocks_free: int
    """Free blocks, those that still hold reusable prompt cache included."""
    prompt_tokens_total: int
    cached_tokens_total: int
    """Prompt tokens that came from the prompt cache."""
    generation_tokens_total: int
    preemptions_total: int
    epoch: str
    """Changes when the engine process starts anew: counters and caches began again."""
    sequence: int
    """Grows by one with every event of one epoch."""
    memory: MemoryPlan | None = None
    adapters: tuple[str, ...] = ()


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /internal/drain``. Idempotent; ``draining=False`` takes the replica back in."""

    draining: bool = True
