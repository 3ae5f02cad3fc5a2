"""What stops a benchmark before or instead of a measurement. Failed requests are counted, not raised."""

from __future__ import annotations


class BenchmarkError(Exception):
    """The benchmark cannot be run with these options; the message says what to change."""
