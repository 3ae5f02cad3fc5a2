"""The router's tests run on uvloop, as the router does: the two loops differ where connections die.

Also an engine and a file of keys, which tests of keys share.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop
from pytest_asyncio.plugin import LoopFactory
from router_support.engine import MockEngine
from router_support.keys import content, key, write


def pytest_asyncio_loop_factories() -> dict[str, LoopFactory]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def engine() -> AsyncIterator[MockEngine]:
    async with MockEngine("a") as engine:
        yield engine


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    """A keys file with one key, ``SECRET``."""
    path = tmp_path / "keys.json"
    write(path, content(key()))
    return path
