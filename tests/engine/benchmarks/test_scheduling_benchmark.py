"""The scheduler's loads on simulated devices reach their targets, beside first come, first served. No real seconds."""

from __future__ import annotations

import pytest
from benchmarks.engine.scheduling import Load, compare, loads

FASTER = {
    "fixed_cost": 10,
    "mixed_graphs": 1,
    "flood": 100,
    "wide_search": 100,
    "no_blocks": 5,
    "long_prompts": 5,
    "shared_prefix": 5,
    "burst": 1,
}
"""By what factor at least the 99th percentile of short prompts' time to their first token falls."""


@pytest.mark.parametrize("load", loads(), ids=lambda load: load.name)
def test_short_prompts_come_sooner_and_throughput_stays(load: Load) -> None:
    figures = compare(load)
    missed = [str(figure) for figure in figures if not figure.reached]
    assert not missed
    value = {figure.name.removeprefix(f"{load.name}_"): figure.value for figure in figures}
    assert value["short_ttft_p99_before"] / value["short_ttft_p99"] >= FASTER[load.name]
