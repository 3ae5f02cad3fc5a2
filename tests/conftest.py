"""What must be settled before any test is imported.

Triton kernels run in its interpreter where there is no GPU. Hypothesis draws the same examples each time, so that two
runs of one commit agree; ``make soak`` draws new ones. The router is interpreted, unless it is said to be compiled.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("random")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd")):
    os.environ["TRITON_INTERPRET"] = "1"

os.environ.setdefault("BLADE_ROUTER_COMPILED", "0")


def pytest_sessionstart() -> None:
    """Tests that are to run on compiled modules run on nothing else."""
    if os.environ["BLADE_ROUTER_COMPILED"] == "1":
        from blade_router.http import connection

        assert connection.__file__.endswith(".so"), connection.__file__


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports make much and free little; and later the garbage collector need not look at every module and test again
    whenever a test leaves something."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
