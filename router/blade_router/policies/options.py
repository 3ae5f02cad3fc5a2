"""The parameters of policies, besides their name."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.prefix_cache.interface import PrefixCacheIndex
from blade_router.policies.replica_sync.siblings import Siblings


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Parameters shared by a policy and its successor when the configuration changes."""

    index: PrefixCacheIndex
    """The approximate prefix-cache index."""
    exact: PrefixCacheIndex | None = None
    """The exact index from engines' KV events, for ``kv-aware``; None: there are no events, ``index`` is used."""
    cost: str = ""
    """``MODULE:FUNCTION`` for ``external``."""
    replicas: Callable[[], int] = lambda: 1
    """The number of router processes, this one included, that send to the same endpoints."""
    state_interval: float = 2.0
    """Seconds between engines' load reports."""
    rng: random.Random = field(default_factory=random.Random)
    clock: Callable[[], float] = time.monotonic
    """Seconds; the time of load reports."""
    siblings: Siblings | None = None
    """What other routers have sent, for policies that choose by expected time; None: nothing is known of it."""

    def removed(self, endpoint: Endpoint) -> None:
        """Forget an endpoint that will not come back."""
        self.index.removed(endpoint)
        if self.exact is not None:
            self.exact.removed(endpoint)
