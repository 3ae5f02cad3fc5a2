"""The retries of one request that has no response yet: which endpoints were tried, and whether another may be.

Endpoints that could not be connected to, drain, or are not ready have not worked on the request: those tries are free.
The others cost the client time and the engines work, so they are charged and come out of the retry budget.
"""

import time

from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_health import EndpointHealth, attribute_failures
from blade_router.endpoints.quarantine import Trial, is_loss
from blade_router.endpoints.retry_budget import DRAINING, RetryBudget, retry_after_seconds
from blade_router.http.errors import Headers
from blade_router.http.upstream.errors import ConnectFailed, ConnectionLost, UpstreamError
from blade_router.proxy.relay import BufferedResponse

RETRIABLE = frozenset((500, 502, 503))
"""Statuses that say "not here, not now": another endpoint may do better. A 4xx is the client's and passes through."""


def refuses_token(endpoint: Endpoint, response: BufferedResponse) -> bool:
    """Whether a BladeLLM engine refuses the router itself: that is none of the client's business."""
    refused = response.status == 401 and response.complete and endpoint.config.engine == "blade"
    return refused and b'"invalid_token"' in response.body


class RetryState:
    """The attempts of one request so far.

    Args:
        budget: allows retries that cost engines work.
        trial: the request's, where it is suspected of killing engines from the start.
    """

    __slots__ = (
        "_budget",
        "_connection_lost",
        "_failed",
        "attempts_charged",
        "last",
        "needs_budget",
        "panic",
        "reason",
        "trial",
        "tried",
    )

    def __init__(self, budget: RetryBudget, trial: Trial | None = None) -> None:
        self.tried: list[Endpoint] = []
        self.attempts_charged = 0
        """How many endpoints have worked on it."""
        self.reason = ""
        """What was wrong with the last one, in a word."""
        self.panic = False
        """No endpoint was usable when the last one was picked."""
        self.last: tuple[BufferedResponse, Headers] | None = None
        """The last response that is worth a retry, for the client if there is no better."""
        self.needs_budget = False
        """The next try costs: ``take_retry`` first."""
        self.trial = trial
        """Whether it kills engines; None: none was lost with it."""
        self._budget = budget
        self._failed: list[EndpointHealth] = []
        """Those that answered with an error of their own."""
        self._connection_lost = False
        """The last one broke the connection."""

    async def take_retry(self) -> bool:
        """Take the next try out of the budget, and back off. False when it may not be made."""
        if not self._budget.take(time.perf_counter()):
            return False
        await self._budget.back_off(self.attempts_charged)
        self.needs_budget = False
        return True

    # the outcome of an attempt

    def succeeded(self, endpoint: Endpoint, status: int) -> None:
        """The response is the client's."""
        if status >= 500:
            return
        endpoint.health.record_success()
        if self.trial is not None:
            self.trial.began()
        if self._failed:
            attribute_failures(self._failed, answered=True)
            self._failed.clear()

    def rejected(self, endpoint: Endpoint, response: BufferedResponse, headers: Headers) -> None:
        """The response has a retriable status; ``headers`` would go with it to the client."""
        self.last = (response, headers)
        if DRAINING in response.headers:
            self.reason = "draining"
            self.needs_budget = False
            endpoint.health.mark_draining()
            return
        self.reason = str(response.status)
        if self.panic and response.status == 503:  # it was not usable, and its response confirms it
            self.needs_budget = False
            return
        self.needs_budget = True
        self.attempts_charged += 1
        if seconds := retry_after_seconds(response.status, response.headers):
            endpoint.health.eject_for(seconds)
        else:
            self._failed.append(endpoint.health)

    def refused_token(self, endpoint: Endpoint) -> None:
        """The engine does not know the router's token: one of the two got a new one first, and the other soon will."""
        self.reason = "token"
        self.needs_budget = False
        endpoint.health.refuse_token()

    def failed(self, endpoint: Endpoint, error: UpstreamError) -> None:
        """There was no response. Of a lost connection only the request's trial can tell whose fault it was."""
        absent = isinstance(error, ConnectFailed) and not error.sent
        self.reason = error.reason
        self._connection_lost = isinstance(error, ConnectionLost) or (isinstance(error, ConnectFailed) and error.sent)
        self.needs_budget = not absent and (self.attempts_charged > 0 or not self._connection_lost)
        self.attempts_charged += not absent
        if absent or not is_loss(error):
            endpoint.health.record_failure(str(error), error)
        elif isinstance(error, ConnectFailed) and error.absent:
            endpoint.health.mark_down(str(error))

    # when no candidate is left

    @property
    def may_wait(self) -> bool:
        """No engine answered with an error: there may be one that is not ready yet."""
        return not self._failed

    def reset(self) -> None:
        """The request has waited for endpoints: whatever was tried before does not count."""
        self.tried.clear()
        self.last, self.reason, self.needs_budget = None, "", False

    def retry_lost_connections(self) -> bool:
        """Only endpoints that broke the connection are left: try them again, once, as they may still be there."""
        if not self._connection_lost or self._failed:
            return False
        self.tried.clear()
        self._connection_lost, self.needs_budget = False, True
        return True

    def give_up(self) -> None:
        """There will be no better response."""
        attribute_failures(self._failed, answered=False)
