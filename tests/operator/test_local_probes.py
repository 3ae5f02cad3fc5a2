"""How often a probe looks, and what it counts."""

from __future__ import annotations

import asyncio

import pytest

from blade_operator.cluster.local import probes
from blade_operator.cluster.local.probes import Probe, follow


async def test_an_eager_probe_looks_more_often_but_counts_a_failure_once_a_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0

    async def ask(_: Probe) -> str:
        nonlocal asked
        asked += 1
        return "not yet"

    monkeypatch.setattr(probes, "ask", ask)
    monkeypatch.setattr(probes, "_EAGER_PERIOD", 0.01)
    probe = Probe(path="/", port=1, delay=0, period=0.2, timeout=1, success=1, failure=2)
    async with asyncio.timeout(10):
        await follow(probe, lambda good, why: False, eager=True)
    assert asked > 3  # two of them counted
