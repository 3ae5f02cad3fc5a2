"""What policies are made with, beside their name."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from blade_router.endpoints import Endpoint
from blade_router.policies.source import PrefixSource


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Shared by one policy and the one that follows it when the configuration changes."""

    index: PrefixSource
    """Knows what was sent where."""
    exact: PrefixSource | None = None
    """What engines say they hold, for ``kv-aware``; None: nobody follows them, and ``index`` has to do."""
    cost: str = ""
    """``MODULE:FUNCTION`` for ``external``."""
    replicas: Callable[[], int] = lambda: 1
    """How many router processes, this one counted, send to the same endpoints."""
    state_interval: float = 2.0
    """Seconds between engines' reports of their load."""
    rng: random.Random = field(default_factory=random.Random)

    def removed(self, endpoint: Endpoint) -> None:
        """This endpoint will not come back."""
        self.index.removed(endpoint)
        if self.exact is not None:
            self.exact.removed(endpoint)
