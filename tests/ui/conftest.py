"""The browser, the services its pages are opened on, and what has to hold on every page that a test opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from ui_support.chromium import MILLISECONDS, chromium
from ui_support.demo import Demo, demo
from ui_support.serving import Simulate, simulated
from ui_support.watched import Open, Watched, watch

SECONDS = 600
"""For a test and its fixtures: minutes pass on a busy machine until a service is ready."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They all need a browser."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.page)
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=MILLISECONDS)
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """The demo service, ready; tests leave it as it is."""
    with demo(tmp_path_factory.mktemp("demo")) as ready:
        yield ready


@pytest.fixture
def simulate() -> Iterator[Simulate]:
    """Starts simulated routers, by `simulated`; they live longer than the pages of ``context``."""
    with ExitStack() as servers:
        yield lambda scenario, **options: servers.enter_context(simulated(scenario, **options))


@pytest.fixture
def context(browser: Browser, simulate: object) -> Iterator[Open]:
    """Makes contexts, by `watch`; at the end nothing may have gone wrong in any of them."""
    made: list[Watched] = []

    def make(origin: str, **options: Any) -> Watched:
        made.append(watch(browser, origin, **options))
        return made[-1]

    yield make
    for each in made:
        each.context.close()
    for each in made:
        each.check()


@pytest.fixture
def page(context: Open, service: Demo) -> Page:
    """The web UI of the demo service in a wide window, in which the chat's settings have their place."""
    return context(service.origin, width=1600, height=900).page()
