"""Environment variables the operator sets for the programs it starts. Secrets only travel this way or as files."""

from typing import Final

INTERNAL_TOKEN_FILE: Final = "BLADE_INTERNAL_TOKEN_FILE"
"""Path of a file with the internal token; without it the internal port listens on loopback only."""
HOST: Final = "BLADE_HOST"
"""Address that a container's ports bind to."""
INTERNAL_PORT: Final = "BLADE_INTERNAL_PORT"
"""The internal port of a pod: first ``blade_llm_fetch`` reports its progress there, then the engine its state."""
REVISION: Final = "BLADE_REVISION"
"""The revision an engine reports in its state."""
TERMINATION_LOG: Final = "BLADE_TERMINATION_LOG"
"""Path of a container's termination message, which the operator reads; Kubernetes' default path when unset."""
TERMINATION_LOG_DEFAULT: Final = "/dev/termination-log"
TERMINATION_LOG_MAX_BYTES: Final = 4096
LISTEN_FD: Final = "BLADE_LISTEN_FD"
"""File descriptor of an inherited listening socket, from which a router accepts too. Set by the local runtime."""
ENDPOINTS_DIR: Final = "BLADE_ENDPOINTS_DIR"
"""Folder with a ``<service>.json`` (a ``routing.RouterConfig``) for each service, from the local runtime."""
ALLOW_CLIENT_PRIORITY: Final = "BLADE_ALLOW_CLIENT_PRIORITY"
"""Set to anything: as ``--allow_client_priority``, for engines behind routers that bound priorities themselves."""
