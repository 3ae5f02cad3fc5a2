"""How work is divided among the steps that are in flight in the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LEAST_PREFILL: Final = 64
"""Prefill tokens that are not divided further: each step reads all weights."""


def decode_share(decoding: int, ready: int, in_flight: int, stages: int) -> int:
    """Decodes of one of the steps in flight; 0 where every stage has a step, and too few tokens are known: steps of few
    would stay so small, and read all weights for them.

    ``decoding``: requests that decode, ``ready``: those of them whose tokens are known; ``in_flight``: steps.
    """
    share = -(-decoding // stages)
    return 0 if ready < share and in_flight >= stages else share


def prefill_share(known: int, waiting: Iterable[int], max_batch_tokens: int, stages: int) -> int:
    """Prefill tokens of one of the steps in flight, so that no stage waits for one long step: all that there are to
    compute, and are in flight already, divided among the steps.

    ``known``: those in flight or begun; ``waiting``: of each request that waits.
    """
    for count in waiting:
        if known >= max_batch_tokens * stages:
            break
        known += count
    return max(LEAST_PREFILL, -(-known // stages))
