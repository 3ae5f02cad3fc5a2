"""The measuring of a GPU's memory, with torch's memory functions replaced: which steps run, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from engine_support.recording_graphs import RecordingGraphs, prepare_from_device
from engine_support.tiny_models import engine_config, save_model

from blade_llm.cache.sizing import kv_block_bytes
from blade_llm.models.config import load_model_config
from blade_llm.models.errors import NotEnoughMemoryError
from blade_llm.runner.startup.dummy_batch import HEAVIEST, blocks_for
from blade_llm.runner.startup.gpu_profile import profile_gpu
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.masks import DraftMasks
from blade_llm.scheduling.plan import PendingForward, StepPlan

MIB = 1 << 20
TOKENS, SEQUENCES, LENGTH = 64, 6, 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen2")
    save_model(path, "qwen2", num_hidden_layers=1)
    return path


class Watched(TorchRunner):
    """Remembers the plans it runs."""

    plans: list[StepPlan]

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> PendingForward:  # type: ignore[override]
        self.plans.append(plan)
        return super().launch_forward(plan, draft_masks)


@pytest.fixture
def runner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """A runner on the CPU that has only its weights, as one on a GPU has when it measures."""
    monkeypatch.setattr("blade_llm.runner.forward_pass.prepare", prepare_from_device)
    config = engine_config(
        folder, max_batch_tokens=TOKENS, max_num_seqs=SEQUENCES, max_model_len=LENGTH, max_gpu_memory_utilization=0.5
    )
    runner = Watched(config, load_model_config(folder), RecordingGraphs)
    runner.plans = []
    runner.detach()
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (700 * MIB, 1000 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: 100 * MIB)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda *_: 130 * MIB)
    with torch.inference_mode():
        yield runner


def test_full_steps_run_with_the_heaviest_sampling_and_leave_nothing_behind(runner: Watched) -> None:
    memory = profile_gpu(runner, 950 * MIB, LENGTH)
    blocks = max(blocks_for([10] * 6), blocks_for([45, 19])) + 1
    cache = blocks * kv_block_bytes(runner.model_config, "float32")
    assert memory.activation_peak == 30 * MIB
    assert memory.free == 700 * MIB + cache
    assert memory.lasting == 250 * MIB - cache
    assert (memory.total, memory.share) == (1000 * MIB, 0.5)
    assert memory.kv_cache == 500 * MIB - memory.lasting - 30 * MIB
    many, few = [plan for plan in runner.plans if plan.new_requests][-2:]
    assert all(new.sampling == HEAVIEST for plan in (many, few) for new in plan.new_requests)
    assert [chunk.count for chunk in many.chunks] == [TOKENS // SEQUENCES] * SEQUENCES
    assert [chunk.count for chunk in few.chunks] == [LENGTH - 3, TOKENS - LENGTH + 3]
    assert not hasattr(runner, "tables")


def test_every_number_of_sequences_and_every_kind_of_sampling_is_tried(runner: Watched) -> None:
    profile_gpu(runner, 950 * MIB, LENGTH)
    decodes = {len(plan.chunks) for plan in runner.plans if not plan.new_requests}
    assert decodes == set(range(1, SEQUENCES + 1))
    mixed = [plan for plan in runner.plans if plan.new_requests and len(plan.chunks) > len(plan.new_requests)]
    assert mixed
    prefills = {plan.num_tokens for plan in runner.plans if len(plan.new_requests) == len(plan.chunks) == 1}
    assert {1, 15, 16, 17, 31, 32, 33} <= prefills
    kinds = {repr(new.sampling) for plan in runner.plans for new in plan.new_requests}
    assert len(kinds) >= SEQUENCES


@pytest.mark.parametrize("fails", ["attach", "launch_sampling"])
def test_a_step_that_does_not_fit_names_the_flags(fails: str, runner: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner, fails, exhausted)
    with pytest.raises(NotEnoughMemoryError, match=r"--ragged_flash_max_batch_tokens to 32 or --max_num_seqs to 3"):
        profile_gpu(runner, 950 * MIB, LENGTH)


def test_running_out_in_service_names_a_smaller_share(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = TorchRunner(engine_config(folder), load_model_config(folder))

    def exhausted(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("blade_llm.runner.torch_runner.send_inputs", exhausted)
    launch: Callable[[StepPlan], object] = runner.launch_forward
    with pytest.raises(NotEnoughMemoryError, match=r"--max_gpu_memory_utilization to 0\.85"):
        launch(StepPlan(0, []))
