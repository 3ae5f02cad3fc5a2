"""Autoscaling policies beside each other, on a model of engines: ``python -m benchmarks.scaling``."""
