"""A collector of OpenTelemetry for tests."""
