"""What engine, router and operator have in common of traces and logs: OpenTelemetry's exporter, sampling by its
environment variables, and logs as lines of JSON.

OpenTelemetry itself is imported where tracing is on, and nowhere else: without the extra ``tracing`` all three run.
"""
