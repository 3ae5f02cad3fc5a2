"""What has been tried for one request that has no answer yet, and whether it may be tried again.

Endpoints that could not be connected to, drain, or are not ready have not worked on the request: those tries are free.
After others the client pays in time and the engines in work, so they are counted and come out of the retry budget.
"""

import time

from blade_router.endpoints import Endpoint, settle
from blade_router.errors import Headers
from blade_router.relay import Answer
from blade_router.retries import DRAINING, RetryBudget, asked_to_wait
from blade_router.upstream_errors import ConnectFailed, ConnectionLost, UpstreamError

RETRIED = frozenset((500, 502, 503))
"""Answers that say "not here, not now": another endpoint may do better. A 4xx is the client's and passes through."""


class Attempts:
    """Of one request.

    Args:
        budget: allows retries that cost engines work.
    """

    __slots__ = ("_budget", "_failed", "_lost", "careful", "last", "tried", "why", "worked")

    def __init__(self, budget: RetryBudget) -> None:
        self.tried: list[Endpoint] = []
        self.worked = 0
        """How many endpoints have worked on it."""
        self.why = ""
        """What was wrong with the last one, in a word."""
        self.last: tuple[Answer, Headers] | None = None
        """The last answer that is worth another try, for the client if there is no better."""
        self._budget = budget
        self._failed: list[Endpoint] = []
        """Those that answered with an error of their own."""
        self.careful = False
        """The next try costs: ``pay`` first."""
        self._lost = False
        """The last one broke the connection."""

    async def pay(self) -> bool:
        """Take the next try out of the budget, and wait for it. False when it may not be made."""
        if not self._budget.take(time.perf_counter()):
            return False
        await self._budget.pause(self.worked)
        self.careful = False
        return True

    # how a try ended

    def answered(self, endpoint: Endpoint, status: int) -> None:
        """With an answer that is the client's."""
        if status >= 500:
            return
        endpoint.record_success()
        if self._failed:
            settle(self._failed, answered=True)
            self._failed.clear()

    def refused(self, endpoint: Endpoint, answer: Answer, headers: Headers, *, panic: bool) -> None:
        """With one of ``RETRIED``; ``headers`` would go with it to the client."""
        self.last = (answer, headers)
        if DRAINING in answer.headers:
            self.why = "draining"
            self.careful = False
            endpoint.mark_draining()
            return
        self.why = str(answer.status)
        if panic and answer.status == 503:  # thought not to be ready, and says so
            self.careful = False
            return
        self.careful = True
        self.worked += 1
        if seconds := asked_to_wait(answer.status, answer.headers):
            endpoint.pause(seconds)
        else:
            self._failed.append(endpoint)

    def broke(self, endpoint: Endpoint, error: UpstreamError) -> None:
        """Without an answer."""
        absent = isinstance(error, ConnectFailed) and not error.sent
        self.why = error.reason
        self._lost = isinstance(error, ConnectionLost) or (isinstance(error, ConnectFailed) and error.sent)
        self.careful = not absent and (self.worked > 0 or not self._lost)
        self.worked += not absent
        endpoint.record_failure(str(error), error)

    # when nobody is left

    @property
    def may_wait(self) -> bool:
        """No engine answered with an error: there may be one that is not ready yet."""
        return not self._failed

    def start_over(self) -> None:
        """The request has waited for engines: whatever was tried before does not count."""
        self.tried.clear()
        self.last, self.why, self.careful = None, "", False

    def ask_the_lost_again(self) -> bool:
        """Nobody is left but who broke the connection: another try tells whether it is still there. Once."""
        if not self._lost or self._failed:
            return False
        self.tried.clear()
        self._lost, self.careful = False, True
        return True

    def give_up(self) -> None:
        """There will be no better answer."""
        settle(self._failed, answered=False)
