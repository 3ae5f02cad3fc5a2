"""Telemetry: traces of requests, and the payload log."""
