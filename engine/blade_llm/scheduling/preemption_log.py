"""The warning that requests are preempted, with what to change; at most once a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

WARNING_SECONDS: Final = 60.0
"""Between two warnings."""
_log: Final = logging.getLogger(__name__)


class PreemptionLog:
    """Warns of preemptions. ``clock``: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = float("-inf")
        self._logged = 0

    def preempted(self, request_id: str, total: int) -> None:
        """A request was preempted, the ``total``-th since the start."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + WARNING_SECONDS
        _log.warning(
            "Request %s is preempted because there is not enough KV cache space (%d preemptions since the last "
            "warning, %d in all): it is computed again later. Raise --kv_cache_bytes (on a GPU "
            "--max_gpu_memory_utilization), or lower --max_num_seqs or --max_model_len",
            request_id,
            total - self._logged,
            total,
        )
        self._logged = total
