"""Prometheus metrics of a server: what API servers measure of requests, and the engine's last state."""
