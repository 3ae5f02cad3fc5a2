"""Default ports, and how the port of a program's inside follows from the public one."""

from typing import Final

ENGINE_PORT: Final = 8081
ROUTER_PORT: Final = 8080
INTERNAL_PORT_OFFSET: Final = 1000
"""An engine's internal port, and a router's admin port, is its public port plus this."""
ROUTER_ADMIN_PORT: Final = ROUTER_PORT + INTERNAL_PORT_OFFSET
MEETING_PORT: Final = 29500
"""Where the machines of an engine meet (``--dist_init_addr``), as torch's own tools have it."""
