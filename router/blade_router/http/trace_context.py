"""W3C trace context (https://www.w3.org/TR/trace-context/): the trace a request belongs to, whether it is recorded, and
the header that passes it on to engines.

Most requests are not recorded: for them this is all that tracing costs.
"""

import math
import random
import re
import time

from blade_router.http.errors import Headers

_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 1
_NEVER = 2**62
"""More requests than there will be."""
MAX_ATTEMPTS = 32
"""Attempts at one request that are recorded; a request that waits for engines may have more."""


class AttemptTimes:
    """One try of a recorded request at one endpoint. Times are ``time.perf_counter``'s."""

    __slots__ = ("ended", "endpoint", "error", "reason", "span_id", "started")

    def __init__(self, endpoint: str, reason: str, span_id: bytes, started: float) -> None:
        self.endpoint = endpoint
        self.reason = reason
        """Why this endpoint was chosen."""
        self.span_id = span_id
        self.started = started
        self.ended = 0.0
        """0 while it runs."""
        self.error = ""
        """Why it failed, in a word."""


class Trace:
    """The trace of one request, and what is recorded of it."""

    __slots__ = ("attempts", "line", "parent_id", "sampled", "span_id", "trace_id")

    def __init__(self, trace_id: bytes, span_id: bytes, parent_id: bytes, sampled: bool) -> None:
        self.trace_id = trace_id
        """32 hexadecimal digits."""
        self.span_id = span_id
        """The router's span, 16 hexadecimal digits; empty where the router has none in this trace."""
        self.parent_id = parent_id
        """The client's span; empty when the trace begins here."""
        self.sampled = sampled
        """It is recorded here."""
        self.line = b""
        """Header line for engines; empty where the client's headers already say it."""
        self.attempts: list[AttemptTimes] = []

    def begin_attempt(self, endpoint: str, reason: str) -> None:
        """The request goes to this endpoint: what that records becomes a child of this attempt's span."""
        span_id = b"%016x" % random.getrandbits(64)
        self.line = b"traceparent: 00-%b-%b-01\r\n" % (self.trace_id, span_id)
        if len(self.attempts) < MAX_ATTEMPTS:
            self.attempts.append(AttemptTimes(endpoint, reason, span_id, time.perf_counter()))

    def end_attempt(self, error: str) -> None:
        """The last attempt is over; ``error`` says why it failed, empty where it did not."""
        last = self.attempts[-1]
        if not last.ended:
            last.ended, last.error = time.perf_counter(), error


class TraceSampler:
    """Decides which requests are recorded, as OpenTelemetry's sampler ``parentbased_traceidratio`` does.

    Args:
        bound: a trace is recorded where the last 64 bits of its id are less: the ratio times 2**64.
        parent_based: a client's own decision counts for its trace; otherwise only ``bound`` does.
    """

    def __init__(self, bound: int, parent_based: bool = True) -> None:
        self._bound = bound
        self._parent_based = parent_based
        self._passed_over = self._gap()
        """So many of the traces that begin here come before the next one that is recorded."""

    def begin(self) -> Trace | None:
        """A new trace; None: it is not recorded, and nobody needs its id. Behind a router engines begin none."""
        if self._passed_over:
            self._passed_over -= 1
            return None
        self._passed_over = self._gap()
        low = random.randrange(self._bound)
        return Trace(b"%016x%016x" % (random.getrandbits(64), low), b"%016x" % random.getrandbits(64), b"", True)

    def _gap(self) -> int:
        """How many traces in a row are not recorded, drawn as if each had an id (Devroye, Non-Uniform Random Variate
        Generation, 1986, X.2): so that those draw nothing."""
        ratio = self._bound / 2**64
        if ratio >= 1.0:
            return 0
        if ratio <= 0.0:
            return _NEVER
        return min(_NEVER, int(math.log(1.0 - random.random()) / math.log1p(-ratio)))

    def samples(self, trace_id: bytes, parent_sampled: bool) -> bool:
        """Whether to record a request of a trace that its client began."""
        return parent_sampled if self._parent_based else int(trace_id[16:], 16) < self._bound


def join(parent: bytes, headers: Headers, sampler: TraceSampler | None) -> tuple[Trace | None, Headers]:
    """The trace of a request, and its headers without what ``Trace.line`` says instead.

    Args:
        parent: its ``traceparent``.
        sampler: None: nothing is recorded, and headers pass as they are.
    """
    found = _PARENT.fullmatch(parent)
    if found is None:
        if sampler is None:
            return None, headers
        # The state belongs to an invalid trace.
        return sampler.begin(), [each for each in headers if each[0] not in (b"traceparent", b"tracestate")]
    trace_id, parent_id = found[1], found[2]
    if sampler is None or not sampler.samples(trace_id, bool(int(found[3], 16) & _SAMPLED)):
        return Trace(trace_id, b"", parent_id, False), headers
    trace = Trace(trace_id, b"%016x" % random.getrandbits(64), parent_id, True)
    return trace, [each for each in headers if each[0] != b"traceparent"]
