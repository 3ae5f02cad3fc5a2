"""Settings that are measured at the first start on a machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blade_llm.kernels.linear import native
from blade_llm.runner.startup import autotune


class Runner:
    device = torch.device("cpu")
    dtype_name = "bfloat16"


class Group:
    """Of two ranks, of which the other one measured ``other``."""

    def __init__(self, other: int) -> None:
        self.other = other

    def least(self, value: int) -> int:
        return min(value, self.other)


@pytest.mark.parametrize(("own", "other"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("matters", [True, False])
def test_all_ranks_multiply_quantised_weights_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch, own: bool, other: bool, matters: bool
) -> None:
    chosen: list[bool] = []
    monkeypatch.setattr(native, "kinds_in_use", lambda: ())
    monkeypatch.setattr(native, "integers_matter", lambda: matters)
    monkeypatch.setattr(native, "set_always_integers", chosen.append)
    monkeypatch.setattr(autotune, "cached_measurement", lambda name, measure: float(own))
    runner: Any = Runner()
    group: Any = Group(other)
    autotune.autotune_linear(runner, group)
    assert chosen == ([own and other] if matters else [])
