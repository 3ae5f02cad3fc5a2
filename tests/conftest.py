"""What must be settled before any test is imported.

Triton kernels run in its interpreter where there is no GPU. Hypothesis draws the same examples each time, so that two
runs of one commit agree, whichever tests come before; ``make soak`` draws new ones. The router is interpreted, unless
it is said to be compiled.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from longest_files import LONGEST

if TYPE_CHECKING:
    from ssl import SSLContext

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(_PROFILE := os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
if _PROFILE == "repeatable":  # it mixes in constants of whatever modules a worker has imported by then
    providers._get_local_constants = Constants  # type: ignore[assignment]

if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd")):
    os.environ["TRITON_INTERPRET"] = "1"

os.environ.setdefault("BLADE_ROUTER_COMPILED", "0")


def pytest_sessionstart() -> None:
    """Tests that are to run on compiled modules run on nothing else."""
    if os.environ["BLADE_ROUTER_COMPILED"] == "1":
        from blade_router.http import connection

        assert connection.__file__.endswith(".so"), connection.__file__


def pytest_configure() -> None:
    """httpx reads this machine's certificates for each client anew, which takes 40 ms: here once."""
    if find_spec("httpx") is None:  # beside a GPU
        return
    import httpx

    create = httpx.create_ssl_context
    shared = cache(lambda trust_env, *certificates: create(trust_env=trust_env))

    def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> SSLContext:
        if verify is not True or cert is not None:
            return create(verify, cert, trust_env)
        return shared(trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    pytest.MonkeyPatch().setattr("httpx._transports.default.create_ssl_context", context)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, when several processes share the files: else one is left with a long file at the end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = {config.rootpath / "tests" / name: index for index, name in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(item.path, len(place)))


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
