"""Finds the trace that a request belongs to, and tells its client."""

from typing import Final

from blade_protocol import headers as names
from blade_router.http.client import Client
from blade_router.http.head import RawRequest
from blade_router.http.trace_context import TraceSampler, join

_TRACE_ID: Final = names.TRACE_ID.encode()


def join_trace(request: RawRequest, client: Client, sampler: TraceSampler | None) -> None:
    """Set ``request.trace``, and a header with its id for whatever the client gets. ``sampler``: None: nothing is
    recorded."""
    if request.traceparent:
        trace, request.headers = join(request.traceparent, request.headers, sampler)
    elif sampler is not None:
        trace = sampler.begin()
    else:
        return
    if trace is not None:
        request.trace = trace
        client.add_header(_TRACE_ID, trace.trace_id)
