"""Rows of the web UI from the records that the data path leaves of requests."""

import time
from collections.abc import Iterator
from itertools import islice

import msgspec

from blade_router.endpoints.endpoint import public_name
from blade_router.observability.recent_requests import RecentRequest, RecentRequests
from blade_router.proxy.proxy import CLIENT_GONE
from blade_router.ui.state import AttemptRow, RequestRow

SHOWN = 200
"""Requests in flight, and ended ones of a second, that are shown: the newest."""
EPOCH = time.time() - time.perf_counter()
"""Seconds since 1970 when ``time.perf_counter`` was 0."""


def in_flight_rows(recent: RecentRequests) -> list[RequestRow]:
    """The newest requests in flight, the oldest of them first."""
    newest = list(islice(reversed(recent.in_flight.items()), SHOWN))
    return [row(RecentRequest(request, started)) for request, started in reversed(newest)]


def ended_rows(recent: RecentRequests, since: int, most: int) -> list[RequestRow]:
    """The newest of those that have ended after the one with the number ``since``, in the order in which they did."""
    return [row(each) for each in reversed(list(islice(_newer(recent, since), most)))]


def _newer(recent: RecentRequests, since: int) -> Iterator[RecentRequest]:
    for each in reversed(recent.ended):
        if each.number <= since:
            return
        yield each


def row(recent: RecentRequest) -> RequestRow:
    """The row of one request."""
    started, usage = recent.started, recent.usage
    ended = recent.ended > 0.0
    return RequestRow(
        id=recent.id.decode("latin-1"),
        trace_id=recent.trace_id.decode("ascii") or None,
        started=round(EPOCH + started, 4),
        key=recent.key or None,
        model=recent.model,
        path=recent.path,
        stream=recent.streamed,
        status=recent.status if ended else None,
        error=recent.code or ("client_gone" if recent.status == CLIENT_GONE else None),
        endpoint=recent.endpoint or None,
        reason=_reason(recent),
        prompt_tokens=usage.prompt_tokens if usage is not None else None,
        cached_tokens=usage.cached_tokens if usage is not None else None,
        completion_tokens=usage.completion_tokens if usage is not None else None,
        queued=_after(started, recent.queued_at),
        chosen=_after(started, recent.chosen_at),
        first_token=_after(started, recent.first_byte_at),
        end=_after(started, recent.ended),
        attempts=_attempts(recent),
    )


def public_row(row: RequestRow) -> RequestRow:
    """As a client with a key may see its own: like the headers of its response. How much of a prompt is cached, and how
    busy an engine is, tells of others."""
    replace = msgspec.structs.replace
    return replace(
        row,
        endpoint=row.endpoint and public_name(row.endpoint),
        reason=row.reason and row.reason.partition(" ")[0],
        attempts=tuple(replace(each, endpoint=public_name(each.endpoint)) for each in row.attempts),
    )


def _reason(recent: RecentRequest) -> str | None:
    return recent.route.reason + recent.route_words if recent.route is not None else None


def _after(started: float, moment: float) -> float | None:
    return round(max(0.0, moment - started), 5) if moment else None


def _attempts(recent: RecentRequest) -> tuple[AttemptRow, ...]:
    """All of them in order; the last is the one that the client's response is of, if there is one."""
    started = recent.started
    found = [
        AttemptRow(each.endpoint, round(max(0.0, each.at - started), 5), each.outcome)
        for each in recent.earlier_attempts or ()
    ]
    was_last_noted = len(found) >= recent.attempts or bool(found and found[-1].outcome == "resumed")
    if recent.chosen_at and not was_last_noted:
        outcome = str(recent.status) if recent.ended else "running"
        found.append(AttemptRow(recent.endpoint, _after(started, recent.chosen_at) or 0.0, outcome))
    return tuple(found)
