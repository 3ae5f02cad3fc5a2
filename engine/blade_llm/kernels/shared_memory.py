"""How much shared memory a program may have on a GPU: what decides how many loads can be in flight."""

from __future__ import annotations

from functools import cache

import torch

_LEAST = 1 << 16
"""Of GPUs that are in use; what tests without one count with."""


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes."""
    if device.type != "cuda":
        return _LEAST
    import triton

    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return int(properties["max_shared_mem"])
