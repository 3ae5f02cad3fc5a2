"""Buckets of histograms fit what LLMs take."""

from __future__ import annotations

from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families

from blade_llm.api.metrics.requests import NUM_COUNTERS, ServerMetrics
from blade_protocol import metrics as names


@pytest.fixture(scope="module")
def bounds() -> dict[str, list[float]]:
    """Upper bounds by histogram, but for the infinite one."""
    row = [0.0] * NUM_COUNTERS
    text = ServerMetrics(lambda: None, row, [row], "m").render().decode()
    return {
        family.name: [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")][:-1]
        for family in text_string_to_metric_families(text)
        if family.type == "histogram"
    }


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        (names.ENGINE_TTFT, 0.001, 120),
        (names.ENGINE_QUEUE_TIME, 0.001, 120),
        (names.ENGINE_PREFILL_TIME, 0.001, 120),
        (names.ENGINE_TPOT, 0.001, 5),
        (names.ENGINE_ITL, 0.001, 5),
        (names.ENGINE_E2E, 0.1, 600),
        (names.ENGINE_DECODE_TIME, 0.1, 600),
    ],
)
def test_they_span_what_is_met(bounds: dict[str, list[float]], name: str, least: float, most: float) -> None:
    assert bounds[name][0] <= least
    assert bounds[name][-1] >= most
    assert all(1 < above / below <= 3 for below, above in pairwise(bounds[name]))
