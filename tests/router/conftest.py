"""The router's tests run on uvloop, as the router does: the two loops differ where connections die."""

import uvloop
from pytest_asyncio.plugin import LoopFactory


def pytest_asyncio_loop_factories() -> dict[str, LoopFactory]:
    return {"uvloop": uvloop.new_event_loop}
