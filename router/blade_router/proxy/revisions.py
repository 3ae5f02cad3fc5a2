"""What the outcome of an attempt says of the revision that its engine is of."""

from blade_router.endpoints.retry_budget import DRAINING
from blade_router.http.upstream.errors import ConnectFailed, EngineShutdown, UpstreamError
from blade_router.proxy.relay import BufferedResponse
from blade_router.request.read_usage import TAIL
from blade_router.request.request import ClientRequest
from blade_router.statistics.revisions import Attempt


def count_failure(attempt: Attempt | None, error: UpstreamError) -> None:
    """Count an attempt without a response. An engine that is gone, or hands its requests over, has not failed them."""
    absent = isinstance(error, ConnectFailed) and not error.sent
    if attempt is not None and not absent and not isinstance(error, EngineShutdown):
        attempt.failed()


def count_rejection(attempt: Attempt | None, response: BufferedResponse) -> None:
    """Count a response with which the request goes elsewhere. An engine that drains is no worse than others."""
    if attempt is not None and DRAINING not in response.headers:
        attempt.failed()


def count_response(
    attempt: Attempt | None, response: BufferedResponse, lost: UpstreamError | None, request: ClientRequest
) -> None:
    """Count a response that the client got. ``lost``: why it broke off.

    What the client did wrong says nothing of a revision, and neither do pages that no engine computes.
    """
    if attempt is None:
        return
    if lost is not None:
        count_failure(attempt, lost)
    elif response.status >= 500:
        attempt.failed()
    elif response.status < 400 and request.method == "POST":
        events, usage = response.events, request.usage
        tokens = usage.completion_tokens if usage is not None else request.events
        end = response.body if events is None or response.complete else events.last
        attempt.succeeded(events is not None, tokens, end[-TAIL:])
