"""Memory of a router that the operator has to know, because it sets the resources of its container. In bytes."""

from typing import Final

BODY_BUDGET_BYTES: Final = 256 << 20
"""Default of ``--body_budget_bytes``: memory of one router process for the bodies of requests in flight."""
MIN_BODY_BUDGET_BYTES: Final = 24 << 20
"""The least of it with which a router starts: there is room for one body of the default limit."""
PREFIX_INDEX_BYTES: Final = 64 << 20
"""Default of ``--prefix_index_bytes``."""
KV_INDEX_BYTES: Final = 96 << 20
"""Default of ``--kv_index_bytes``; taken with the policy kv-aware only."""
ROUTER_PROCESS_BYTES: Final = 256 << 20
"""The most memory one router process takes besides bodies, with a prefix index of the default size."""
SERVICE_REPORT_BYTES: Final = 256 << 10
"""The most bytes of an operator's report of a service to a router."""
