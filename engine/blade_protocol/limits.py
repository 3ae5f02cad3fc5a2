"""Limits of a router that the operator has to know, because it sets the memory of its container."""

BODY_BUDGET_BYTES = 256 << 20
"""Default of ``--body_budget_bytes``: memory of one router process for the bodies of requests in flight."""
ROUTER_PROCESS_BYTES = 256 << 20
"""The most memory one router process takes besides, with an index of prefixes of the default size."""
