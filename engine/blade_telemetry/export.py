"""Spans of what has ended, and their way to a collector: OpenTelemetry's SDK, OTLP over HTTP, in a thread of its own.

Nothing waits for the collector: spans wait in a bounded queue, and beyond that are dropped and counted. A span is made
when what it describes is over, with the times and ids that were noted meanwhile.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Final, cast

from blade_telemetry.options import TraceOptions
from blade_telemetry.spans import Pending

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

logger: Final = logging.getLogger(__name__)

MAX_PENDING: Final = 4096
"""The most spans that wait, or are on their way."""
BATCH: Final = 512
FLUSH_SECONDS: Final = 5.0
"""Seconds a span waits at most before it is sent, while the collector responds; OpenTelemetry's default. A request to
the collector costs as much as thirty spans."""
CLOSE_SECONDS: Final = 2.0
"""Seconds that sending the last spans may take when a program ends."""
TIMEOUT: Final = 5.0
"""Seconds for one request to the collector, tries again included; ``OTEL_EXPORTER_OTLP_TIMEOUT`` replaces it."""
_TIMEOUTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")


class TracingUnavailableError(Exception):
    """Tracing is on, and OpenTelemetry is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "tracing needs OpenTelemetry: pip install 'bladellm[tracing]', or leave out --otlp_traces_endpoint and "
            "OTEL_EXPORTER_OTLP_ENDPOINT"
        )


def require_opentelemetry() -> None:
    """Raises:
    TracingUnavailableError: the extra ``tracing`` is not installed.
    """
    try:
        import blade_telemetry.otlp  # noqa: F401
    except ImportError as error:
        raise TracingUnavailableError from error


class SpanExport:
    """Sends spans to a collector.

    Args:
        options: where to.
        program: ``service.name`` where the environment has none.
        exporter: in tests; OTLP over HTTP when left out.

    Raises:
        TracingUnavailableError: the extra ``tracing`` is not installed.
    """

    def __init__(self, options: TraceOptions, program: str, exporter: SpanExporter | None = None) -> None:
        require_opentelemetry()
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from blade_telemetry.otlp import CountingExporter, otlp_exporter

        if exporter is None:
            exporter = otlp_exporter(options.endpoint, None if any(map(os.environ.get, _TIMEOUTS)) else TIMEOUT)
        self.sent = 0
        self.failed = 0
        """Spans that the collector did not take."""
        self.overflowed = 0
        """Spans that found too many waiting."""
        self._begun = 0
        self._processor = BatchSpanProcessor(
            CountingExporter(exporter, program, self._exported),
            max_queue_size=2 * MAX_PENDING,  # never full: the bound is below
            max_export_batch_size=BATCH,
            schedule_delay_millis=FLUSH_SECONDS * 1e3,
        )

    @property
    def dropped(self) -> int:
        """Spans that never reached the collector."""
        return self.failed + self.overflowed

    def send(self, pending: Pending) -> None:
        """Send one span, or several that are made in the thread that sends them, or drop them while too many wait."""
        if self._begun - self.sent - self.failed + pending.count > MAX_PENDING:
            self.overflowed += pending.count
            return
        self._begun += pending.count
        self._processor.on_end(cast("ReadableSpan", pending))  # it asks whether this is recorded, and hands it on

    def close(self) -> None:
        """Send what waits, for a limited time."""
        deadline = time.monotonic() + CLOSE_SECONDS
        thread = threading.Thread(target=self._processor.shutdown, name="last spans", daemon=True)
        thread.start()
        thread.join(max(0.0, deadline - time.monotonic()))

    def _exported(self, count: int, taken: bool) -> None:
        """The exporter is done with so many; called in its thread, the only one that changes these numbers."""
        if taken:
            self.sent += count
        else:
            self.failed += count


def new_span_id() -> str:
    """16 hexadecimal digits."""
    return f"{random.getrandbits(64):016x}"


def new_trace_id() -> str:
    """32 hexadecimal digits."""
    return f"{random.getrandbits(128):032x}"
