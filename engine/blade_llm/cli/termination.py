"""The last word of a short-lived container, where Kubernetes (or the local runtime) picks it up for the status."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from blade_protocol.environment import TERMINATION_LOG, TERMINATION_LOG_DEFAULT


def write_termination_log(data: bytes, environment: Mapping[str, str] = os.environ) -> None:
    """Write ``data`` to the file of ``BLADE_TERMINATION_LOG``, else to Kubernetes' default path if that file exists.

    A path that cannot be written is reported on stderr and changes nothing else.
    """
    named = environment.get(TERMINATION_LOG)
    path = Path(named or TERMINATION_LOG_DEFAULT)
    if not named and not path.exists():
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        print(f"cannot write the termination log {path}: {error.strerror}", file=sys.stderr)
