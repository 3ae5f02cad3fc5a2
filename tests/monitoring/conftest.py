"""One scrape of everything, for all tests of this folder."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from engine_support.server_process import ServerProcess
from monitoring_support.programs import ask_engine, engine, operated, routed
from monitoring_support.prometheus import Prometheus, Target, program, scraping
from operator_support.local import until

from monitoring.generate import ROOT, RULES

ROUNDS = 12
"""Rounds of requests, with a short pause after each; more while Prometheus is slow."""
SCRAPES = 8
"""Of each program, at least."""
LABELS = {"namespace": "team", "serving_bladellm_io_name": "demo"}


@dataclass(frozen=True, slots=True)
class Scraped:
    """Prometheus with what it scraped, and the last page of each program."""

    prometheus: Prometheus
    pages: dict[str, str]


@pytest.fixture(scope="session")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Everything under load for some seconds, scraped all the while; queries are answered as of its end."""
    program("prometheus")
    folder = tmp_path_factory.mktemp("scraped")
    with engine(folder / "engine") as server, pytest.MonkeyPatch.context() as patch:
        with asyncio.Runner() as runner:
            load = _Load(server, patch, folder)
            runner.run(load.run())
        try:
            yield Scraped(load.prometheus, load.pages)
        finally:
            load.stop()


class _Load:
    def __init__(self, server: ServerProcess, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._server = server
        self._patch = patch
        self._folder = folder
        self.pages: dict[str, str] = {}

    async def run(self) -> None:
        """Start, ask, and note when that was over."""
        async with (
            routed() as router,
            operated(self._patch) as operator,
            httpx.AsyncClient(timeout=60, trust_env=False) as client,
        ):
            ports = {
                "engine": int(self._server.url.rpartition(":")[2]),
                "router": router.running.admin_port,
                "operator": operator.port,
            }
            # As the Prometheus operator labels what the chart's monitors find.
            targets = {
                "engine": Target(ports["engine"], LABELS | {"pod": "demo-engine-0", "endpoint": "http"}),
                "router": Target(
                    ports["router"], LABELS | {"pod": "demo-router-0", "endpoint": "admin"}, dropped=("endpoint",)
                ),
                "operator": Target(
                    ports["operator"],
                    {"namespace": "system", "pod": "operator-0", "endpoint": "http", "service": "bladellm-operator"},
                ),
            }
            self._scraping = scraping(self._folder, targets, ROOT / RULES)
            self.prometheus = await asyncio.to_thread(self._scraping.__enter__)
            await until(lambda: len(self.prometheus.query("up == 1")) == len(targets), 60)
            operator.meet_the_rare()
            async with asyncio.timeout(120):
                for number in itertools.count():
                    asked = (router.ask(), ask_engine(self._server, client), operator.reconcile())
                    await asyncio.gather(*asked, asyncio.sleep(0.3))
                    if number >= ROUNDS and self._was_scraped(len(targets)):
                        break
            for name, port in ports.items():
                self.pages[name] = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
            self.prometheus.time = time.time()

    def _was_scraped(self, targets: int) -> bool:
        return len(self.prometheus.query(f"sum_over_time(up[10m]) >= {SCRAPES}")) == targets

    def stop(self) -> None:
        """End Prometheus."""
        self._scraping.__exit__(None, None, None)
