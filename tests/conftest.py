"""Triton kernels run in its interpreter where there is no GPU: said before any library imports Triton."""

from __future__ import annotations

import os
from pathlib import Path

if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd")):
    os.environ["TRITON_INTERPRET"] = "1"
