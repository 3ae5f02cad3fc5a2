"""Kubernetes Events from what changed between two statuses."""
