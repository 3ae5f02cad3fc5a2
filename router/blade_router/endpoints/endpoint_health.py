"""The health of one endpoint: active health check, circuit breaker (outlier ejection), draining and slow start.

Two sources meet here: the active health check (``mark_up``/``mark_down``) and the outcome of real requests
(``record_success``/``record_failure``: passive ejection). Nothing here does I/O.
"""

import logging
import time
from collections.abc import Callable, Iterable

from blade_router.endpoints.breaker import Breaker
from blade_router.http.upstream.errors import ConnectFailed, OutOfResources, UpstreamError

logger = logging.getLogger("blade_router.endpoints")

SLOW_START_MIN_WEIGHT = 0.1
"""Weight of an endpoint that has just become usable."""
TOKEN_SECONDS = 0.25
MAX_TOKEN_SECONDS = 8.0
"""Seconds for which an endpoint gets nothing when it has refused the router's token once, and at most."""


class EndpointHealth:
    """Health of one endpoint. Its state is written by its own methods only.

    Args:
        name: the endpoint's name, for the log.
    """

    __slots__ = (
        "breaker",
        "can_eject",
        "check_now",
        "draining",
        "name",
        "on_change",
        "token_refusals",
        "token_refused_until",
        "up",
        "up_since",
        "warming_since",
        "weight",
    )

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.up: bool | None = None
        """Result of the last active check; None before the first."""
        self.up_since = 0.0
        """When the active check first passed after it had not (monotonic)."""
        self.breaker = Breaker()
        self.draining = False
        """The engine itself reported that it drains."""
        self.token_refusals = 0
        """How many times in a row it has refused the router's token, once for each time it was readmitted."""
        self.token_refused_until = 0.0
        """Until then (monotonic) no health check readmits it: those need no token."""
        self.weight = 1.0
        """Share of the load it should get, relative to others: rises from ``SLOW_START_MIN_WEIGHT`` to 1 after it has
        become usable. Policies divide its load by it."""
        self.warming_since = 0.0
        """Start of its slow start (monotonic); 0 outside of one."""
        self.check_now: Callable[[], None] = lambda: None
        """Requests an active check at once; set by the health checker."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when it may have become usable, or stopped to be; set by its ``EndpointSet``."""
        self.can_eject: Callable[[], bool] = lambda: True
        """Whether its service can do without one more endpoint; set by its ``EndpointSet``."""

    @property
    def failures(self) -> int:
        """Consecutive failed requests."""
        return self.breaker.failures

    @property
    def ejected_until(self) -> float:
        """End of the current ejection (monotonic)."""
        return self.breaker.open_until

    # active health check

    def mark_up(self) -> None:
        """The active check passed. An endpoint that was down starts with a clean record."""
        if self.up is True and not self.draining:
            return
        if self.token_refused_until > time.monotonic():
            return
        if self.up is False:
            logger.info("endpoint %s is up", self.name)
            self.breaker.reset()
        now = time.monotonic()
        if self.up is not True:
            self.up_since = now
        self.up = True
        self.draining = False
        self.warming_since = now
        self.on_change()

    def mark_down(self, why: str) -> None:
        """The active check failed, or the network reported that nobody is there."""
        if self.up is False:
            return
        logger.warning("endpoint %s is down: %s", self.name, why)
        self.up = False
        self.token_refusals, self.token_refused_until = 0, 0.0  # what comes back may have another token
        self.on_change()

    def mark_draining(self, why: str = "is draining") -> None:
        """The engine takes nothing new now, as it reported: it gets nothing until its health check passes again."""
        if not self.draining:
            logger.info("endpoint %s %s", self.name, why)
            self.draining = True
            self.check_now()
            self.on_change()

    def refuse_token(self) -> None:
        """The engine does not accept the router's token: it gets nothing for a while, each time in a row for longer.

        Its health check passes all the same, and whatever waits for it would be sent again with each.
        """
        now = time.monotonic()
        if now >= self.token_refused_until:  # else it is about a request that was sent before
            self.token_refused_until = now + min(MAX_TOKEN_SECONDS, TOKEN_SECONDS * 2.0 ** min(self.token_refusals, 16))
            self.token_refusals += 1
        self.mark_draining("does not accept the internal token")

    # passive health: outcomes of requests

    def record_success(self) -> None:
        """It answered a request, with whatever status below 500."""
        self.token_refusals = 0
        if self.breaker.succeed():
            logger.info("endpoint %s has recovered", self.name)
            self.warming_since = time.monotonic()
            self.on_change()

    def record_failure(self, why: str, error: UpstreamError | None = None) -> None:
        """A request failed on it: no response (``error``), or a 5xx.

        A connection that is refused, or has nowhere to go, takes it out until the active check passes again. Other
        failures eject it from the third in a row on.
        """
        if isinstance(error, OutOfResources):
            return  # the router's own fault
        self.check_now()
        if isinstance(error, ConnectFailed) and error.absent:
            self.mark_down(why)
            return
        if seconds := self.breaker.fail(time.monotonic(), self.can_eject()):
            logger.warning("endpoint %s ejected for %g s after %d failures: %s", self.name, seconds, self.failures, why)
            self.on_change()

    def record_unattributed_failure(self, why: str) -> None:
        """It answered 5xx to a request that no other endpoint answered better: that weighs little."""
        if seconds := self.breaker.fail_unattributed(time.monotonic(), self.can_eject()):
            logger.warning("endpoint %s ejected for %g s: again and again %s", self.name, seconds, why)
            self.on_change()

    def eject_for(self, seconds: float) -> None:
        """Eject it without a failure: the engine sent ``Retry-After`` with a 503, or another worker ejected it."""
        if self.can_eject() and self.breaker.eject_for(time.monotonic(), seconds):
            self.on_change()

    # slow start

    def warm_up(self, now: float, slow_start: float) -> bool:
        """Raise the weight to what is due after part of ``slow_start`` seconds; False when it has reached 1."""
        elapsed = now - self.warming_since
        if elapsed >= slow_start:
            self.weight, self.warming_since = 1.0, 0.0
            return False
        self.weight = SLOW_START_MIN_WEIGHT + (1.0 - SLOW_START_MIN_WEIGHT) * elapsed / slow_start
        return True


def attribute_failures(failed: Iterable[EndpointHealth], *, answered: bool) -> None:
    """Decide whose fault it was that these endpoints answered a request with 5xx.

    The endpoints' fault, if another one ``answered`` it. If none did it may as well be the request's, sent again and
    again by its client: one such request must not eject every endpoint, so this counts a fourth of a failure.
    """
    for health in failed:
        if answered:
            health.record_failure("it answered 5xx where another endpoint did not")
        else:
            health.record_unattributed_failure("it answered 5xx")
