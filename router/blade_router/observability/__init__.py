"""Observability: metrics, signals for the autoscaler, the access log and traces."""
