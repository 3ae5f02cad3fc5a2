"""How full the GPU is, for the load report: read now and then, as asking the driver takes its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from blade_protocol.state import GpuMemory

if TYPE_CHECKING:
    import torch

INTERVAL = 5.0
"""Seconds for which a reading is good."""


class GpuMemoryReader:
    """Reads the memory of ``device``; called by one thread."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.monotonic) -> None:
        self._device = device
        self._clock = clock
        self._read_at = float("-inf")
        self._last: tuple[GpuMemory, ...] = ()

    def __call__(self) -> tuple[GpuMemory, ...]:
        """The device's memory, at most ``INTERVAL`` old; nothing on CPU."""
        if self._device.type != "cuda":
            return ()
        now = self._clock()
        if now - self._read_at >= INTERVAL:
            import torch  # it is imported where an engine has bounded how its threads spin

            self._read_at = now
            free, total = torch.cuda.mem_get_info(self._device)
            name = torch.cuda.get_device_name(self._device)
            self._last = (GpuMemory(name=name, used=total - free, total=total),)
        return self._last
