"""LoRA adapters of an engine, as its internal port lists, loads and unloads them."""

from typing import Literal

import msgspec

AdapterTier = Literal["device", "host", "disk"]
AdapterState = Literal["registered", "loading", "loaded", "failed"]


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter."""

    name: str
    """What requests call it."""
    path: str
    """Where it was loaded from."""
    tier: AdapterTier
    """Where its weights are now: a request finds them on the device, in host memory, or waits for the disk."""
    rank: int
    """0: not known yet."""
    nbytes: int
    """Of its weights in host memory, as they were read last; 0: not known yet."""
    digest: str
    """sha256 of its content, in hexadecimal: equal on every engine that has the same adapter. Empty until its weights
    were read."""
    pinned: bool = False
    """It stays in host memory."""
    requests: int = 0
    """Requests with it that have not ended."""
    state: AdapterState = "loaded"
    """``registered``: its files were checked, its weights are read for its first request. ``loading``: it is read, and
    answers no request yet. ``loaded``: it was read and answers requests, from whichever tier. ``failed``: it could not
    be loaded and answers none; the entry is there to say why."""
    reason: str = ""
    """Why the last load of this name failed; of one that is ``loaded``: why it was not replaced."""


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
    host_load_seconds: float = 0.0
    """What reading one from disk takes, as of the last ones; 0: none was read yet."""


class AdapterList(msgspec.Struct, frozen=True, kw_only=True):
    """Response of ``GET /internal/adapters``."""

    adapters: list[AdapterInfo]


class LoadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /internal/adapters/load`` and, with vLLM's names, of ``POST /v1/load_lora_adapter``."""

    lora_name: str
    lora_path: str
    """A folder; on the internal port also what a model's path may be: an id of a hub, a bucket, a registry."""
    pinned: bool = False
    """Keep it in host memory."""
    wait: bool = True
    """Respond when it is loaded. False: respond at once, with a 202 and its :class:`AdapterInfo`; how loading ended is
    in the list."""
    replace: bool = False
    """A name that has another path gets this one once its weights are read; until then, and if they cannot be read,
    requests get the old ones. False: a name that has another path is refused."""
    register_only: bool = False
    """Check its files and give it a name; read its weights for its first request."""


class UnloadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /internal/adapters/unload`` and, with vLLM's names, of ``POST /v1/unload_lora_adapter``."""

    lora_name: str
