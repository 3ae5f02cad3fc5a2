"""Where ranks stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.parallel.layout import RankLayout


def test_ranks_of_a_stage_are_on_one_machine() -> None:
    layout = RankLayout(tensor=4, pipeline=2, nodes=2)
    assert layout.size == 8
    assert [layout.stage_of(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [layout.tensor_rank_of(rank) for rank in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [layout.node_of(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [layout.local_rank_of(rank) for rank in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4))
def test_every_rank_is_in_one_stage_and_on_one_machine(tensor: int, pipeline: int, nodes: int) -> None:
    if tensor * pipeline % nodes:
        with pytest.raises(ValueError, match="cannot be divided among"):
            RankLayout(tensor, pipeline, nodes)
        return
    layout = RankLayout(tensor, pipeline, nodes)
    ranks = list(range(layout.size))
    assert [rank for stage in range(pipeline) for rank in layout.ranks_of_stage(stage)] == ranks
    assert [rank for node in range(nodes) for rank in layout.ranks_of_node(node)] == ranks
    for rank in ranks:
        assert rank in layout.ranks_of_stage(layout.stage_of(rank))
        assert layout.ranks_of_stage(layout.stage_of(rank))[layout.tensor_rank_of(rank)] == rank
        assert layout.ranks_of_node(layout.node_of(rank))[layout.local_rank_of(rank)] == rank


def test_degrees_are_at_least_one() -> None:
    with pytest.raises(ValueError, match="below 1"):
        RankLayout(tensor=0)
