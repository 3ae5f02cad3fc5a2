"""Endpoints: health checks, circuit breakers, the retry budget, and health shared between workers."""
