"""The attacks run on uvloop, as the router does."""

import uvloop
from pytest_asyncio.plugin import LoopFactory


def pytest_asyncio_loop_factories() -> dict[str, LoopFactory]:
    return {"uvloop": uvloop.new_event_loop}
