"""Default ports, and how the internal port follows from the public one."""

from typing import Final

ENGINE_PORT: Final = 8081
ROUTER_PORT: Final = 8080
INTERNAL_PORT_OFFSET: Final = 1000
"""An engine's internal port is its public port plus this."""
