"""Alerts, as the chart brings them in a PrometheusRule. Each has a page in ``docs/runbooks/``."""
