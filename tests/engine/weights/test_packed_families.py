"""Packed weights of every family: a later start reads nothing but the packed file, and computes the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_support.families import ROWS, in_one_tensor, save_row
from engine_support.packed_starts import keep_small_models, logits, names_read
from engine_support.pairwise import in_turn
from engine_support.tiny_models import engine_config

from blade_llm.models.config import load_model_config
from blade_llm.runner import build_runner
from blade_llm.weights.packed_cache import loading
from blade_llm.weights.packed_cache.file import PackedFile

CPU, BF16 = torch.device("cpu"), torch.bfloat16

pytestmark = pytest.mark.skipif(not loading.can_be_kept(CPU, BF16), reason="no native kernels on this CPU")


@pytest.fixture(autouse=True)
def small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_small_models(monkeypatch)


@pytest.mark.parametrize(
    ("name", "quant"), in_turn([name for name, row in ROWS.items() if row.through == "blade"], ["none", "int8"])
)
def test_a_later_start_reads_the_packed_file_alone(
    name: str, quant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ROWS[name]
    save_row(tmp_path / "model", row)
    options = {**row.runner, "quant": quant}
    expected = logits(tmp_path / "model", None, **options)
    assert torch.equal(logits(tmp_path / "model", tmp_path / "cache", **options), expected)
    (packed,) = (tmp_path / "cache").glob("*.packed")
    assert len(PackedFile(packed).directory.linears) >= 3 * 4
    read = names_read(monkeypatch)
    assert torch.equal(logits(tmp_path / "model", tmp_path / "cache", **options), expected)
    routers = [name for name in read if row.family.startswith("Deepseek") and name.endswith(".mlp.gate.weight")]
    towers = load_model_config(tmp_path / "model").tensors.vision
    read = [name for name in read if not (towers and name.startswith(towers))]  # a vision tower is not packed
    assert read == routers, "all but what oneDNN keeps, routers in fp32, was converted, and so is in the packed file"


@pytest.mark.parametrize("name", ["qwen3-moe", "gpt2"])
def test_two_replicas_read_the_same_pages(name: str, tmp_path: Path) -> None:
    """Each maps the file, and neither has a page of its own in place of one of the file's."""
    save_row(tmp_path / "model", ROWS[name])
    config = engine_config(
        tmp_path / "model", dtype="bfloat16", packed_cache_dir=str(tmp_path / "cache"), packed_cache_bytes=1 << 40
    )
    build_runner(config)
    replicas = [build_runner(config) for _ in range(2)]
    (packed,) = (tmp_path / "cache").glob("*.packed")
    entries = Path("/proc/self/smaps").read_text(encoding="utf-8").split("VmFlags")
    mappings = [entry for entry in entries if str(packed) in entry]
    lines = [line.split() for entry in mappings for line in entry.splitlines()]
    lines = [line.split() for entry in mappings for line in entry.splitlines()]
    own = [int(words[1]) for words in lines if words and words[0] == "Private_Dirty:"]
    assert len(mappings) >= len(replicas)
    assert own == [0] * len(mappings)


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe-some"])
def test_experts_in_one_tensor_are_packed_as_those_in_many(name: str, tmp_path: Path) -> None:
    save_row(tmp_path / "many", ROWS[name])
    in_one_tensor(tmp_path / "many", tmp_path / "one")
    expected = logits(tmp_path / "many", None)
    for _ in range(2):
        assert torch.equal(logits(tmp_path / "one", tmp_path / "cache"), expected)
