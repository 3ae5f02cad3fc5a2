"""``check_shm``: is there shared memory, and enough of it?

One engine process needs almost none (its messages go over Unix sockets), but several ranks on one machine exchange
tensors through it, and libraries that find none fail late and obscurely.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from blade_protocol.check import CheckItem

SHM: Final = Path("/dev/shm")
PASS_BYTES: Final = 64 << 20
"""What a container gets by default; less than that was requested by mistake."""


def check_shm(folder: Path = SHM) -> CheckItem:
    """PASS from 64 MiB, WARNING below, FAILED when ``folder`` is missing or cannot be written."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")
        stat = os.statvfs(folder)
    except OSError as error:
        return CheckItem(
            name="check_shm",
            status="FAILED",
            detail=f"{folder} cannot be used ({error.strerror}); mount a writable tmpfs there",
        )
    size = stat.f_blocks * stat.f_frsize
    detail = f"shared Memory is {size} bytes"
    if size >= PASS_BYTES:
        return CheckItem(name="check_shm", status="PASS", detail=detail)
    return CheckItem(
        name="check_shm",
        status="WARNING",
        detail=f"{detail}, less than {PASS_BYTES}; give the container a larger {folder} (emptyDir, medium: Memory)",
    )
