"""The router's tests run on uvloop, as the router does: the two loops differ where connections die."""

import pytest
import uvloop


@pytest.fixture(scope="session")
def event_loop_policy() -> uvloop.EventLoopPolicy:
    return uvloop.EventLoopPolicy()
