"""Ranks that do not belong together are refused with a message that says why."""

from __future__ import annotations

import pytest

from blade_llm.engine.ranks.lost import RankFailedError
from blade_llm.engine.ranks.messages import RankReady
from blade_llm.engine.ranks.ready import ReadyRanks


def test_ranks_get_ready_in_any_order() -> None:
    ready = ReadyRanks(4, "1")
    for rank, missing in ((2, [1, 3]), (3, [1]), (1, [])):
        ready.add(RankReady(rank=rank, size=4, version="1"))
        assert ready.missing == missing


@pytest.mark.parametrize(
    ("rank", "size", "version", "message"),
    [
        (1, 3, "1", "rank 1 is there twice"),
        (2, 4, "1", "rank 2 was started as one of 4 ranks, rank 0 as one of 3"),
        (3, 3, "1", "rank 3 does not exist: there are ranks 0 to 2"),
        (0, 3, "1", "rank 0 does not exist"),
        (2, 3, "2", "rank 2 runs version 2 and rank 0 version 1: install one version"),
    ],
)
def test_what_does_not_fit_is_refused(rank: int, size: int, version: str, message: str) -> None:
    ready = ReadyRanks(3, "1")
    ready.add(RankReady(rank=1, size=3, version="1"))
    with pytest.raises(RankFailedError, match=message):
        ready.add(RankReady(rank=rank, size=size, version=version))
