"""Steps with adapters on Triton kernels: replayed or launched, they sample what the torch operators sample."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import engine_support.triton_interpreter as triton_interpreter
import pytest
import torch
from engine_support.adapters import KIND, targets_of, write_adapter
from engine_support.recording_graphs import RecordingGraphs
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import engine_config, save_model
from engine_support.whole_engine import generated, whole_engine

from blade_llm.config import EngineConfig
from blade_llm.engine.adapters import LoadedAdapter
from blade_llm.engine.messages import GenerateRequest
from blade_llm.lora.memory import adapter_bytes
from blade_llm.lora.reader import AdapterWeights, read_adapter
from blade_llm.models.config import load_model_config
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams

pytestmark = pytest.mark.skipif(triton_interpreter.COMPILED, reason="compares with torch operators on the CPU")

SIZES = {"cuda_graph_batch_sizes": (2, 4), "cuda_graph_token_sizes": (8, 40)}
MIXED_WITH, MIXED, WITH, PLAIN = ((0, 1), (2, 3), (4, 5), (6, 7))
"""Which captures are of which kind of step, each the larger size first."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``base``, and adapters ``0`` … of different ranks; the third has nothing for most layers."""
    root: Path = tmp_path_factory.mktemp("models")
    save_model(root / "base", "qwen2", num_hidden_layers=2)
    targets = targets_of(root / "base")
    for number, (rank, kind) in enumerate([(4, "every layer"), (20, "every layer"), (8, "queries, keys and values")]):
        write_adapter(root / str(number), targets, rank=rank, seed=number, wanted=KIND[kind])
    return root


def config_of(folder: Path, **options: object) -> EngineConfig:
    settings = {"enable_lora": True, "max_lora_rank": 32, "max_loras": 2, "max_model_len": 128, **SIZES, **options}
    return engine_config(folder / "base", **settings)


def weights(folder: Path, runner: TorchRunner, number: int) -> AdapterWeights:
    assert runner.adapters is not None
    read = read_adapter(folder / str(number), runner.adapters.targets, max_rank=32, dtype=runner.dtype)
    return runner.adapters.prepare(read)


def triton_runner(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[TorchRunner, RecordingGraphs]:
    triton_interpreter.use_triton(monkeypatch)
    backend = RecordingGraphs()
    return TorchRunner(config, load_model_config(config.model_dir), lambda: backend), backend


def enter(driver: Driver, slot: int, adapter: int, length: int) -> None:
    driver.adapter = adapter
    driver.enter(slot, prompt_of(length, seed=slot))


def decodes(driver: Driver, folder: Path) -> list[dict[int, int]]:
    """Decodes of every mixture: several adapters, one, none, and slots that are given to requests of others."""
    for slot, number in ((1, 0), (2, 1)):
        driver.place_adapter(slot, weights(folder, driver.runner, number))
    for slot, (adapter, length) in enumerate([(1, 3), (0, 17), (2, 9), (0, 5)]):
        enter(driver, slot, adapter, length)
        driver.step({slot: length})
    mixtures: Sequence[list[int]] = ([0, 1, 2], [1, 2], [1, 3], [3], [0, 1, 2, 3], [2, 0])
    sampled = [driver.step(dict.fromkeys(slots, 1)) for slots in mixtures]
    driver.leave(0)
    driver.leave(2)
    driver.place_adapter(1, weights(folder, driver.runner, 2))
    enter(driver, 0, 0, 4)
    enter(driver, 2, 1, 6)
    driver.step({0: 4, 2: 6})
    return [*sampled, *(driver.step(dict.fromkeys(slots, 1)) for slots in ([0, 2], [0, 1], [3, 2, 1]))]


def test_one_graph_replays_every_mixture_of_adapters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(folder, cuda_graph_max_tokens=0, cuda_graph_token_sizes=None)
    expected = decodes(Driver(build_runner(config)), folder)
    runner, backend = triton_runner(config, monkeypatch)
    runner.warm_up()
    assert backend.captured == [4, 2, 4, 2]
    assert decodes(Driver(runner), folder) == expected
    of_kind = {0: "with 4", 1: "with 2", 2: "plain 4", 3: "plain 2"}
    assert [of_kind[index] for index in backend.order] == [
        "with 4", "with 2", "plain 2", "plain 2", "with 4", "with 2", "with 2", "plain 2", "with 4",
    ]  # fmt: skip


def mixed_steps(driver: Driver, folder: Path) -> list[dict[int, int]]:
    for slot, number in ((1, 0), (2, 1)):
        driver.place_adapter(slot, weights(folder, driver.runner, number))
    for slot, (adapter, length) in enumerate([(1, 3), (0, 40), (2, 17), (0, 25)]):
        enter(driver, slot, adapter, length)
    plans = ({0: 3}, {0: 1, 1: 20}, {1: 20, 2: 17}, {2: 1, 0: 1, 3: 25}, {1: 1, 3: 1})
    sampled = [driver.step(counts) for counts in plans]
    driver.leave(1)
    enter(driver, 1, 0, 7)
    return [*sampled, driver.step({3: 1, 1: 7})]


def test_replayed_mixed_steps_with_adapters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(folder)
    expected = mixed_steps(Driver(build_runner(config)), folder)
    runner, backend = triton_runner(config, monkeypatch)
    runner.warm_up()
    assert mixed_steps(Driver(runner), folder) == expected
    large, small = MIXED_WITH
    assert backend.order == [small, large, large, large, PLAIN[1], MIXED[1]]


def test_launched_steps_with_adapters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger than any graph, or without graphs."""
    config = config_of(folder, disable_cuda_graph=True)
    reference = Driver(build_runner(config))
    expected = decodes(reference, folder)
    runner, backend = triton_runner(config, monkeypatch)
    runner.warm_up()
    driver = Driver(runner)
    assert decodes(driver, folder) == expected
    assert backend.captured == []
    for slot, logits in driver.logits.items():
        torch.testing.assert_close(logits, reference.logits[slot], atol=1e-4, rtol=1e-4)


def test_graphs_with_adapters_are_captured_beside_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner, backend = triton_runner(config_of(folder), monkeypatch)
    with caplog.at_level(logging.INFO):
        runner.warm_up()
    assert len(backend.captured) == 8
    for expected in ("graph_batch_size=4", "graph_batch_size=4 with adapters", "graph_num_tokens=40 with adapters"):
        assert any(record.message == f"caching graph of {expected}" for record in caplog.records), expected
    assert [graphs.kind for graphs in runner.all_graphs] == [" with adapters", "", " with adapters", ""]


def serve(runner: TorchRunner, folder: Path) -> dict[str, list[int]]:
    """Requests with three adapters and without, all at once, through the engine's own loading."""
    core = whole_engine(runner)
    assert runner.adapters is not None
    loaded = cast("dict[int, LoadedAdapter]", runner.adapters.loaded)
    reader = runner.adapters.reader()
    core.serve_adapters(runner.config, reader, loaded)
    requests = [
        GenerateRequest(
            request_id=str(number), prompt_token_ids=prompt_of(5 + number, seed=number),
            sampling=SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, seed=1),
            adapter=str(folder / str(number % 4)) if number % 4 < 3 else "",
        )
        for number in range(8)
    ]  # fmt: skip
    return generated(core, requests)


def test_a_whole_engine_with_more_adapters_than_slots(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(folder, max_loras=2, max_cpu_loras=2, lora_allowed_roots=(str(folder),))
    expected = serve(build_runner(config), folder)
    runner, backend = triton_runner(config, monkeypatch)
    runner.warm_up()
    assert serve(runner, folder) == expected
    assert {*backend.order} & {*WITH}
    assert {*backend.order} & {*MIXED_WITH}


def test_a_batch_without_adapters_launches_what_it_does_in_an_engine_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launches(config: EngineConfig) -> set[object]:
        runner, _ = triton_runner(config, monkeypatch)
        runner.warm_up()
        driver = Driver(runner)
        if config.enable_lora:
            driver.place_adapter(1, weights(folder, runner, 0))
        driver.enter(0, prompt_of(9))
        with pytest.MonkeyPatch.context() as patch:
            variants = triton_interpreter.record_launches(patch)
            driver.step({0: 9})
            driver.decode([0], 2)
        return {variant[0] for variant in variants}

    assert launches(config_of(folder)) == launches(config_of(folder, enable_lora=False))


def test_the_start_compiles_all_that_steps_with_adapters_launch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it needs the memory that they need, as the measuring of a GPU's memory computes all steps with adapters."""
    runner, _ = triton_runner(config_of(folder, disable_cuda_graph=True), monkeypatch)
    assert runner.adapters is not None
    variants = triton_interpreter.record_launches(monkeypatch)
    driver = Driver(runner)
    with runner.adapters.in_all_steps():
        for length in (1, 33):
            driver.enter(0, prompt_of(length))
            driver.step({0: length})
            driver.decode([0], 1)
            driver.leave(0)
    started = {variant for variant in variants if variant[0] in ("shrink", "expand", "find_tiles")}
    variants.clear()
    decodes(Driver(runner), folder)
    assert len(started) >= 3
    assert {variant for variant in variants if variant[0] in ("shrink", "expand", "find_tiles")} <= started


def test_the_slots_take_the_memory_that_the_plan_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(folder)
    runner, _ = triton_runner(config, monkeypatch)
    assert runner.adapters is not None
    planned = adapter_bytes(config, runner.model_config, runner.dtype_name, on_gpu=True)
    assert runner.adapters.allocated_bytes == planned
    twice = adapter_bytes(config_of(folder, max_lora_rank=64), runner.model_config, runner.dtype_name, on_gpu=True)
    assert twice > 1.9 * planned
