"""Adapters on Triton kernels in families whose layers differ: fused, transposed, reordered, latent, transformers'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import engine_support.triton_interpreter as triton_interpreter
import pytest
import torch
from engine_support.adapters import targets_of, write_adapter
from engine_support.families import ROWS, save_row
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import engine_config

from blade_llm.kernels.lora import AdapterBatch, FactorTable
from blade_llm.kernels.lora.torch import add_lora as add_by_torch
from blade_llm.kernels.lora.triton import add_lora as add_by_triton
from blade_llm.kernels.lora.triton import group_tokens
from blade_llm.lora.device_slots import DeviceSlots
from blade_llm.lora.packing import pack
from blade_llm.lora.reader import read_adapter
from blade_llm.lora.targets import Targets
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import shard_model
from blade_llm.runner import build_runner
from blade_llm.spec.adapter_layout import SlotLayout

pytestmark = pytest.mark.skipif(triton_interpreter.COMPILED, reason="compares with torch operators on the CPU")

FAMILIES = ["qwen2", "phi3", "gpt2", "bloom", "chatglm", "falcon", "mixtral", "deepseek-v2", "llama-modules"]


def logits_of(folder: Path, family: str, adapters: list[Path]) -> Callable[[], list[torch.Tensor]]:
    """Of two adapters and none: prefilled in a mixed step and in one of its own, then decoded together."""
    row = ROWS[family]
    runner = build_runner(engine_config(folder, enable_lora=True, disable_cuda_graph=True, **row.runner))

    def run() -> list[torch.Tensor]:
        driver = Driver(runner)
        targets = targets_of(folder, row.runner.get("model_impl", "auto"))
        for slot, adapter in enumerate(adapters, start=1):
            driver.place_adapter(slot, read_adapter(adapter, targets, max_rank=16, dtype=torch.float32))
        steps: list[dict[int, int]] = [{0: 9}, {0: 1, 1: 12}, {0: 1, 1: 1, 2: 5}, {1: 1, 0: 1, 2: 1}]
        found = []
        for counts in steps:
            for slot, count in counts.items():
                if count > 1:
                    driver.adapter = slot
                    driver.enter(slot, prompt_of(count, seed=slot))
            driver.step(counts)
            found += [driver.logits[slot] for slot in counts]
        return found

    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_as_by_torch(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    save_row(folder, ROWS[family])
    targets = targets_of(folder, ROWS[family].runner.get("model_impl", "auto"))
    adapters = [write_adapter(tmp_path / str(rank), targets, rank=rank, seed=rank) for rank in (3, 16)]
    triton_interpreter.use_backend(monkeypatch, "torch")
    expected = logits_of(folder, family, adapters)()
    monkeypatch.setattr("blade_llm.kernels.lora.backend_of", lambda tensor: "triton")
    run = logits_of(folder, family, adapters)
    launches = triton_interpreter.record_launches(monkeypatch)
    found = run()
    assert {variant[0] for variant in launches} == {"sort_by_expert", "find_tiles", "shrink", "expand"}
    for logits, others in zip(found, expected, strict=True):
        torch.testing.assert_close(logits, others, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.soak), 4])
@pytest.mark.parametrize("family", ["qwen2", "phi3", "deepseek-v2"])
def test_a_rank_s_part_of_each_layer_as_by_torch(family: str, size: int, tmp_path: Path) -> None:
    """Narrower layers than whole models have, in buffers of their own layout; and the parts make up the whole."""
    save_row(tmp_path / "model", ROWS[family])
    model = read_model_config(tmp_path / "model")
    adapter = write_adapter(tmp_path / "adapter", Targets.of(model), rank=5)
    generator = torch.Generator().manual_seed(1)
    buffers = torch.tensor([1, 0, 1, 1], dtype=torch.int32)
    batch = AdapterBatch(torch.tensor([0, 2, 3]), [1], [0, 3])
    held = 0
    for rank in range(size):
        targets = Targets.of(shard_model(model, rank, size))
        read = read_adapter(adapter, targets, max_rank=16, dtype=torch.float32)
        layout = SlotLayout(targets.linears, 16)
        slots = DeviceSlots(layout, 1, torch.float32, torch.device("cpu"), deterministic=False)
        slots.write(1, pack(layout, read.factors, torch.float32, pinned=False))
        assert read.factors.keys() == targets.linears.keys()
        for place, factors in read.factors.items():
            if not place.startswith("layers.0."):  # the others are alike
                continue
            x = torch.randn(len(buffers), factors.a.shape[1], generator=generator)
            found, expected = torch.zeros(2, len(buffers), factors.outputs)
            add_by_triton(x, found, slots.table(place), group_tokens(buffers, 2, False))
            table = FactorTable(place, 2)
            table.put(1, factors)
            add_by_torch(x, expected, table, batch)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            assert bool(expected[2].abs().max() > 1e-3)
        held += read.nbytes
    whole = read_adapter(adapter, Targets.of(model), max_rank=16, dtype=torch.float32).nbytes
    assert whole < held < size * whole
