"""LoRA adapters of an engine, as its internal port lists, loads and unloads them."""

from typing import Literal

import msgspec


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter."""

    name: str
    """What requests call it."""
    path: str
    """Where it was loaded from."""
    tier: Literal["device", "host", "disk"]
    """Where its weights are now: a request finds them on the device, in host memory, or waits for the disk."""
    rank: int
    nbytes: int
    """Of its weights in host memory."""
    digest: str
    """sha256 of its content, in hexadecimal: equal on every engine that has the same adapter."""
    pinned: bool = False
    """It stays in host memory."""
    requests: int = 0
    """Requests with it that have not ended."""


class AdapterCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What requests found in each place, since the engine started."""

    device_hits: int
    """Requests whose adapter had a slot on the device when they began to run."""
    device_loads: int
    """Adapters that were brought into a slot."""
    host_hits: int
    """Prompts whose adapter was in host memory when they came."""
    host_loads: int
    """Adapters read from disk."""
    host_evictions: int
    """Adapters that left host memory for others."""


class AdapterList(msgspec.Struct, frozen=True, kw_only=True):
    """Response of ``GET /internal/adapters``."""

    adapters: list[AdapterInfo]


class LoadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /internal/adapters/load`` and, with vLLM's names, of ``POST /v1/load_lora_adapter``."""

    lora_name: str
    lora_path: str
    pinned: bool = False


class UnloadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /internal/adapters/unload`` and, with vLLM's names, of ``POST /v1/unload_lora_adapter``."""

    lora_name: str
