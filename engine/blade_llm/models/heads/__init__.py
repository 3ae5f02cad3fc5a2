"""Heads that draft from a model's hidden states: their configurations, and what computes them."""
