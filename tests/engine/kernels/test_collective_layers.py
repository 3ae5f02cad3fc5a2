"""Whole layers in one call by several ranks, each with its heads and its part of the inner widths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_support import sharded_layers
from engine_support.native_isa import ISAS
from engine_support.rank_processes import results_of

from blade_llm.kernels import collectives
from blade_llm.models.fused import fuse_layers
from blade_llm.parallel.shared_memory import create_segment

pytestmark = pytest.mark.skipif(
    not collectives.is_available() or "avx2" not in ISAS, reason="no native linear layers here"
)

STEPS = (600, 1, 7, 1)
"""More tokens than an MLP takes at once, whose states are more than is sent at once; and few."""


@pytest.mark.parametrize("whole_experts", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_compute_what_one_does(size: int, whole_experts: bool) -> None:
    """Also where each has some experts whole."""
    first, *others = results_of(f"shm:{create_segment(size)}", size, sharded_layers.states_of, STEPS, whole_experts)
    assert others == [first] * (size - 1)
    for tokens, found, expected in zip(STEPS, first, sharded_layers.states(None, STEPS), strict=True):
        states = torch.from_numpy(np.frombuffer(found, dtype=np.float32).reshape(tokens, -1).copy())
        assert states.shape == expected.shape
        assert (states - expected).norm() < 0.01 * expected.norm()
        assert (states - expected).abs().max() < 0.15


def test_a_lost_rank_ends_the_call() -> None:
    lost, left = results_of(f"shm:{create_segment(2)}", 2, sharded_layers.error_when_others_left)
    assert left == "left"
    message = "RankLostError: rank 1 is lost: it left the group before all_reduce of 2560 bytes of bf16"
    assert lost == f"{message} / {message}"


class _WithoutAddress:
    rank, size, native = 0, 2, None


def test_a_group_that_cpp_cannot_call_leaves_layers_apart() -> None:
    group = _WithoutAddress()
    assert fuse_layers([], group) is None  # type: ignore[arg-type]
