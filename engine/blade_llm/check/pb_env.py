"""``check_pb_env``: which protobuf implementation does the environment force on every library in the process?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from blade_protocol.check import CheckItem

VARIABLE: Final = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
FAST: Final = (None, "upb")
SLOW: Final = {
    "python": "forces the slow pure-Python implementation",
    "cpp": "asks for an implementation that protobuf 4 and later do not ship",
}


def check_pb_env(environment: Mapping[str, str] = os.environ) -> CheckItem:
    """PASS when unset or ``upb``, WARNING for ``python`` and ``cpp``, FAILED for any other value."""
    value = environment.get(VARIABLE)
    stated = f"Env var {VARIABLE}={value}"
    if value in FAST:
        return CheckItem(name="check_pb_env", status="PASS", detail=f"{stated} is OK")
    if value in SLOW:
        return CheckItem(name="check_pb_env", status="WARNING", detail=f"{stated} {SLOW[value]}; unset it")
    return CheckItem(
        name="check_pb_env", status="FAILED", detail=f"{stated} names no protobuf implementation; unset it"
    )
