"""What an engine last reported about its own load."""

import time
from collections.abc import Mapping

from blade_protocol.state import EngineState


class LoadReport:
    """Load, models and adapters of one engine, as it reported them. Written by the methods below only.

    Policies read these fields for each request and candidate, so they are plain attributes.
    """

    __slots__ = (
        "adapter_seconds",
        "adapters",
        "cache_tokens",
        "capacity",
        "kv_usage",
        "models",
        "reported_at",
        "revision",
        "running",
        "state",
        "waiting",
    )

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        """Requests of all routers."""
        self.kv_usage: float | None = None
        """Share of its KV cache that running requests hold, 0 to 1; None: unknown."""
        self.capacity = 0
        """Requests it can run at the same time; 0: unknown."""
        self.cache_tokens = 0
        """Tokens that its KV cache, and so its prefix cache, has room for; 0: unknown."""
        self.models: frozenset[str] = frozenset()
        """Names it serves, those of adapters included."""
        self.adapters: frozenset[str] = frozenset()
        """Names of the adapters it has loaded."""
        self.adapter_seconds: Mapping[str, float] = {}
        """Of those whose weights it would have to read first, what that takes."""
        self.revision = ""
        self.state: EngineState | None = None
        """All that a BladeLLM engine reported; None: it is another one, or has not reported yet."""
        self.reported_at = 0.0
        """Time of the last report, also of one that said nothing had changed (``time.monotonic``); 0: never."""

    def update(
        self,
        *,
        running: int | None = None,
        waiting: int | None = None,
        kv_usage: float | None = None,
        capacity: int | None = None,
        cache_tokens: int | None = None,
        models: frozenset[str] | None = None,
        adapters: frozenset[str] | None = None,
        adapter_seconds: Mapping[str, float] | None = None,
        revision: str | None = None,
        state: EngineState | None = None,
        partial: bool = False,
    ) -> None:
        """Take over a report of now; what it leaves out keeps its last value.

        Args:
            partial: the rest of the report is still to come, so ``reported_at`` stays.
        """
        if running is not None:
            self.running = running
        if waiting is not None:
            self.waiting = waiting
        if kv_usage is not None:
            self.kv_usage = kv_usage
        if capacity is not None:
            self.capacity = capacity
        if cache_tokens is not None:
            self.cache_tokens = cache_tokens
        if models is not None:
            self.models = models
        if adapters is not None:
            self.adapters = adapters
        if adapter_seconds is not None:
            self.adapter_seconds = adapter_seconds
        if revision is not None:
            self.revision = revision
        if state is not None:
            self.state = state
        if not partial:
            self.reported_at = time.monotonic()

    def set_cache_tokens(self, tokens: int) -> None:
        """Take over the size of the prefix cache as KV events show it: that is no report of the load."""
        self.cache_tokens = tokens

    def forget_revision(self) -> None:
        """Another engine is at this address now, whose revision is unknown."""
        self.revision = ""
