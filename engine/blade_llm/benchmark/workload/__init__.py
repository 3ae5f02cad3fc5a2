"""Workloads: arrivals, prompts and their lengths."""
