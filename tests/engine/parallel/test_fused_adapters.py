"""All layers of a rank are one native call with adapters too, whose part of a sum is added before the ranks meet."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.adapters import targets_of, write_adapter
from engine_support.families import ROWS, save_row
from engine_support.native_isa import ISAS
from engine_support.rank_adapter_work import layers_together_and_apart
from engine_support.rank_processes import results_of
from engine_support.tiny_models import save_model

from blade_llm.kernels import collectives
from blade_llm.parallel.shared_memory import create_segment

pytestmark = pytest.mark.skipif(
    not collectives.is_available() or "avx2" not in ISAS, reason="no native linear layers here"
)


@pytest.mark.parametrize("name", ["qwen2", "qwen3-moe"])
def test_the_bits_are_those_of_the_layers_one_by_one(name: str, tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir()
    save_model(base, name) if name == "qwen2" else save_row(base, ROWS[name])
    write_adapter(adapter, targets_of(base))
    first, second = results_of(f"shm:{create_segment(2)}", 2, layers_together_and_apart, base, adapter)
    assert first == second
    together, apart = first
    assert len(together) > 8
    assert together == apart
