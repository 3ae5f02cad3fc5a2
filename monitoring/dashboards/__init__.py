"""Grafana dashboards, as the chart brings them."""
