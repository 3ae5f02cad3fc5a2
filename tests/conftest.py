"""What must be settled before any test is imported.

Triton kernels run in its interpreter where there is no GPU. Hypothesis draws the same examples each time, so that two
runs of one commit agree; ``make soak`` draws new ones.
"""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("random")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd")):
    os.environ["TRITON_INTERPRET"] = "1"
