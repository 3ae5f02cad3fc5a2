"""Adapters on a real GPU: graphs, copies beside steps, a launch path that never waits, and the memory of the slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.adapters import merge, targets_of, write_adapter
from engine_support.runner_driver import GREEDY, Driver, prompt_of
from engine_support.tiny_models import engine_config, reference_greedy, save_model

from blade_llm.lora.reader import AdapterWeights, read_adapter
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.scheduling.plan import AdapterUpdate, BlockUpdate, NewRequest, ScheduledChunk, StepPlan

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

RANKS = (4, 16, 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``base``, adapters ``0`` … of :data:`RANKS`, and the model merged with each: ``merged0`` …"""
    root: Path = tmp_path_factory.mktemp("models")
    save_model(root / "base", "qwen2")
    targets = targets_of(root / "base")
    for number, rank in enumerate(RANKS):
        write_adapter(root / str(number), targets, rank=rank, seed=number)
        merge(root / "base", root / str(number), root / f"merged{number}")
    return root


def runner_of(folder: Path, **options: object) -> TorchRunner:
    settings = {"enable_lora": True, "max_lora_rank": 64, "max_loras": 2, "max_model_len": 256, **options}
    return build_runner(engine_config(folder / "base", **settings))


def weights(folder: Path, runner: TorchRunner, number: int) -> AdapterWeights:
    assert runner.adapters is not None
    read = read_adapter(folder / str(number), runner.adapters.targets, max_rank=64, dtype=runner.dtype)
    return runner.adapters.prepare(read)


def expected(folder: Path, name: str, prompt: list[int], count: int) -> list[int]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
    return reference_greedy(model.eval(), prompt, count)


@pytest.mark.parametrize("disabled", [False, True], ids=["graphs", "launched"])
def test_each_adapter_computes_as_merged(folder: Path, disabled: bool) -> None:
    """In company, prefilled in mixed steps; and after a slot was given to another adapter."""
    runner = runner_of(folder, disable_cuda_graph=disabled)
    assert (runner.adapter_graphs is None) == disabled
    driver = Driver(runner)
    names = {0: ("base", 0), 1: ("merged0", 1), 2: ("merged1", 2)}
    for slot in (1, 2):
        driver.place_adapter(slot, weights(folder, runner, slot - 1))
    prompts = {slot: prompt_of(20 + 9 * slot, seed=slot) for slot in names}
    for slot, (_, adapter) in names.items():
        driver.adapter = adapter
        driver.enter(slot, prompts[slot])
        others = dict.fromkeys(range(slot), 1)
        driver.step({**others, slot: len(prompts[slot])})
    driver.decode([0, 1, 2], 10)
    driver.leave(1)
    driver.place_adapter(1, weights(folder, runner, 2))
    names[1], driver.adapter = ("merged2", 1), 1
    driver.enter(1, prompts[1])
    driver.step({0: 1, 2: 1, 1: len(prompts[1])})
    driver.decode([0, 1, 2], 10)
    for slot, (name, _) in names.items():
        tokens = driver.live[slot].tokens[len(prompts[slot]) :]
        assert tokens == expected(folder, name, prompts[slot], len(tokens)), name


@pytest.mark.parametrize("disabled", [False, True], ids=["graphs", "launched"])
def test_launching_never_waits_for_the_device(folder: Path, disabled: bool) -> None:
    """Neither with steps that use adapters, nor where an adapter takes another's slot."""
    runner = runner_of(folder, disable_cuda_graph=disabled)
    assert runner.adapters is not None
    for number in range(3):
        runner.adapters.loaded[number + 1] = weights(folder, runner, number)

    def plans(first: int) -> list[StepPlan]:
        prompt = prompt_of(20)
        new = [NewRequest(slot, f"r{slot}", prompt, 20, GREEDY, adapter_slot=slot) for slot in range(3)]
        blocks = [BlockUpdate(slot, 0, [3 * slot, 3 * slot + 1]) for slot in range(3)]
        prefill = [ScheduledChunk(slot, 0, 20, True, f"r{slot}") for slot in range(3)]
        decode = [ScheduledChunk(slot, 20, 1, True, f"r{slot}") for slot in range(3)]
        other = [NewRequest(1, "other", prompt, 20, GREEDY, adapter_slot=1)]
        mixed = [decode[0], decode[2], ScheduledChunk(1, 0, 20, True, "other")]
        updates = [AdapterUpdate(slot, slot) for slot in (1, 2)]
        return [
            StepPlan(first, prefill, new, blocks, adapter_updates=updates),
            StepPlan(first + 1, decode),
            StepPlan(first + 2, mixed, other, freed_slots=[1], adapter_updates=[AdapterUpdate(1, 3)]),
        ]

    results: list[list[list[list[int]]]] = []
    for mode in ("default", "error"):  # first once to compile and load
        torch.cuda.set_sync_debug_mode(mode)
        try:
            pending = [runner.launch_sampling(runner.launch_forward(plan)) for plan in plans(10 * len(results))]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        results.append([step.result().tokens for step in pending])
    assert results[0] == results[1]


def test_the_plan_counts_the_slots(folder: Path) -> None:
    free, total = torch.cuda.mem_get_info()
    settings = {"kv_cache_bytes": None, "max_num_seqs": 4096, "max_model_len": 256, "max_loras": 64}
    runner = runner_of(folder, max_gpu_memory_utilization=0.2, **settings)
    now, _ = torch.cuda.mem_get_info()
    assert free - now <= 0.21 * total
    assert runner.adapters is not None
    plan = runner.memory_plan
    assert plan.lora == runner.adapters.allocated_bytes > 0
    assert plan.weights + plan.activation_peak + plan.graphs + plan.lora + plan.kv_cache <= 0.2 * total
