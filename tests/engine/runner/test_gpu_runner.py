"""The runner on a real GPU: graphs, a launch path that never waits, and a memory plan that keeps to its share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.runner_driver import GREEDY, Driver
from engine_support.tiny_models import engine_config, reference_greedy, save_model
from engine_support.token_masks import masks_for

from blade_llm.models.errors import NotEnoughMemoryError
from blade_llm.runner import build_runner
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import BlockCopy, BlockUpdate, NewRequest, ScheduledChunk, StepPlan, TokenUpdate

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=11, repetition_penalty=1.2, max_tokens=100)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    return folder, save_model(folder, "qwen2")


def test_graphs_sample_what_eager_decodes_sample(model: tuple[Path, Any]) -> None:
    graphed, eager = (
        build_runner(engine_config(model[0], cuda_graph_batch_sizes=(1, 4), disable_cuda_graph=disabled))
        for disabled in (False, True)
    )
    assert graphed.graphs is not None
    assert graphed.memory_plan.graphs > 0
    assert eager.graphs is None
    drivers = Driver(graphed), Driver(eager)
    for slot in range(5):
        for driver in drivers:
            driver.enter(slot, list(range(20, 40 + 9 * slot)), SAMPLED if slot % 2 else GREEDY)
            driver.step({slot: 20 + 9 * slot})
    for slots in ([0], [1, 2], [4, 2, 0], [0, 1, 2, 3], [0, 1, 2, 3, 4], [3], [0, 1]):
        for _ in range(3):
            sampled = [driver.step(dict.fromkeys(slots, 1)) for driver in drivers]
            assert sampled[0] == sampled[1]
    for slot in (0, 2, 4):
        request = drivers[0].live[slot]
        length = 20 + 9 * slot
        assert request.tokens[length:] == reference_greedy(
            model[1], request.tokens[:length], len(request.tokens) - length
        )


def test_graphs_of_mixed_steps_sample_what_launched_ones_sample(model: tuple[Path, Any]) -> None:
    graphed, eager = (
        build_runner(engine_config(model[0], cuda_graph_token_sizes=(32, 128), disable_cuda_graph=disabled))
        for disabled in (False, True)
    )
    assert graphed.mixed_graphs is not None
    drivers = Driver(graphed), Driver(eager)
    for driver in drivers:
        for slot in range(5):
            driver.enter(slot, list(range(20, 60 + 9 * slot)), SAMPLED if slot % 2 else GREEDY)
    for counts in (
        {0: 40}, {0: 1, 1: 20}, {0: 1, 1: 29, 2: 58}, {0: 1, 2: 1, 1: 1, 3: 7}, {2: 1, 3: 60, 4: 20}, {0: 1, 4: 56},
    ):  # fmt: skip
        sampled = [driver.step(counts) for driver in drivers]
        assert sampled[0] == sampled[1]
    for slot in (0, 2, 4):
        request = drivers[0].live[slot]
        length = 40 + 9 * slot
        assert request.tokens[length:] == reference_greedy(
            model[1], request.tokens[:length], len(request.tokens) - length
        )


@pytest.mark.parametrize("disabled", [False, True], ids=["graphs", "eager"])
def test_launching_never_waits_for_the_device(model: tuple[Path, Any], disabled: bool) -> None:
    runner = build_runner(engine_config(model[0], disable_cuda_graph=disabled))
    driver = Driver(runner)
    for slot, sampling in enumerate((GREEDY, SAMPLED, SamplingParams(temperature=1.0, logprobs=2, max_tokens=50))):
        driver.enter(slot, list(range(30, 50)), sampling)
    driver.step(dict.fromkeys(range(3), 19))
    pending = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for position in range(19, 25):
            chunks = [ScheduledChunk(slot, position, 1, True, f"r{slot}") for slot in range(3)]
            pending.append(runner.launch_sampling(runner.launch_forward(StepPlan(position, chunks))))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [len(step.result().tokens) for step in pending] == [3] * 6


def test_masks_prompt_outputs_and_changes_of_slots_never_wait_either(model: tuple[Path, Any]) -> None:
    runner = build_runner(engine_config(model[0]))
    vocabulary = runner.model_config.vocab_size
    free, with_logprobs = (
        SamplingParams(temperature=0.9, seed=1, max_tokens=50, logit_bias={3: 1.0}),
        SamplingParams(temperature=0.0, prompt_logprobs=3, max_tokens=50),
    )
    prompt = list(range(30, 50))
    new = [
        NewRequest(0, "r0", prompt, 20, free),
        NewRequest(1, "r1", prompt, 20, with_logprobs),
        NewRequest(2, "r2", prompt, 20, GREEDY, pooling="mean"),
        NewRequest(3, "r3", prompt, 20, GREEDY, pooling="last"),
    ]
    blocks = [BlockUpdate(slot, 0, [3 * slot, 3 * slot + 1]) for slot in range(4)]
    first = [ScheduledChunk(slot, 0, 20 if slot else 19, slot == 1, f"r{slot}") for slot in range(4)]
    forced = [ScheduledChunk(0, 19, 3, True, "r0"), ScheduledChunk(1, 20, 1, True, "r1")]
    plans = [
        StepPlan(0, first, new, blocks),
        StepPlan(1, forced, block_copies=[BlockCopy(0, 20)], token_updates=[TokenUpdate(0, 20, [8, 9])]),
    ]
    results = []
    for mode in ("default", "error"):  # first once to compile and load
        torch.cuda.set_sync_debug_mode(mode)
        try:
            pending = []
            for plan in plans:
                forward = runner.launch_forward(plan)
                sampling_slots = [chunk.slot for chunk in plan.chunks if chunk.sample]
                masks = masks_for(sampling_slots, {1: [5, 6], 0: [11]}, vocabulary)
                pending.append(runner.launch_sampling(forward, masks))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        results.append([step.result() for step in pending])
    assert results[0] == results[1]
    begun, went_on = results[1]
    assert begun.tokens[0][0] in (5, 6)
    assert went_on.tokens[0] == [11]
    assert len(begun.prompt_logprobs[1]) == 19
    assert {index: len(state) for index, state in begun.embeddings.items()} == {2: 4 * 64, 3: 4 * 64}


def test_the_plan_keeps_to_its_share(model: tuple[Path, Any]) -> None:
    free, total = torch.cuda.mem_get_info()
    settings = {"kv_cache_bytes": None, "max_num_seqs": 4096, "max_model_len": 1024}
    runner = build_runner(engine_config(model[0], max_gpu_memory_utilization=0.2, **settings))
    now, _ = torch.cuda.mem_get_info()
    assert free - now <= 0.21 * total
    plan = runner.memory_plan
    assert plan.weights + plan.activation_peak + plan.graphs + plan.kv_cache <= 0.2 * total
    del runner
    torch.cuda.empty_cache()
    with pytest.raises(NotEnoughMemoryError, match="--max_gpu_memory_utilization"):
        build_runner(engine_config(model[0], max_gpu_memory_utilization=1e-6, **settings))


def test_torch_attention_can_be_chosen(model: tuple[Path, Any]) -> None:
    runner = build_runner(engine_config(model[0], attn_cls="paged"))
    assert runner.graphs is None
    prompt = list(range(60, 100))
    assert Driver(runner).generate(0, prompt, 10) == reference_greedy(model[1], prompt, 10)
