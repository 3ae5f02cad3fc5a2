"""Tokens on their way back from the last stage: where they are needed, and where they must not go any more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from engine_support.thread_ranks import ThreadLink, thread_links
from engine_support.tiny_models import engine_config, save_model

from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import rank_model
from blade_llm.parallel.layout import RankLayout
from blade_llm.runner.stage_runner import AwaitedStep, StageRunner
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import BlockUpdate, NewRequest, ScheduledChunk, StepPlan, TokenUpdate

GREEDY = SamplingParams(temperature=0.0, max_tokens=100, seed=0)
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> tuple[StageRunner, StageRunner]:
    folder = tmp_path_factory.mktemp("qwen2")
    save_model(folder, "qwen2")
    config = engine_config(folder, max_num_seqs=4, max_model_len=64, pipeline_parallel_size=2)
    whole, links = read_model_config(folder), thread_links(2)

    def build(link: ThreadLink) -> StageRunner:
        runner = StageRunner(config, rank_model(whole, RankLayout(pipeline=2), link.stage), None, link)
        runner.warm_up()
        return runner

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(build, links)
    return first, second


def test_no_machine_has_more_than_its_bytes_for_stages_of_unlike_size(tmp_path: Path) -> None:
    """All have as many blocks as the machine with most layers has room for."""
    save_model(tmp_path, "qwen2", num_hidden_layers=3)
    flags = {"max_num_seqs": 4, "max_model_len": 64, "pipeline_parallel_size": 2, "nnodes": 2}
    config = engine_config(tmp_path, kv_cache_bytes=40_000, **flags)
    whole, links, layout = read_model_config(tmp_path), thread_links(2), RankLayout.of(config)
    with ThreadPoolExecutor(2) as pool:
        runners = pool.map(lambda link: StageRunner(config, rank_model(whole, layout, link.stage), None, link), links)
    first, second = (runner.memory_plan for runner in runners)
    assert first.kv_cache == 2 * second.kv_cache
    assert first.kv_blocks == second.kv_blocks
    assert 0 <= 40_000 - first.kv_cache < first.kv_block_bytes


def enters(slot: int, step: int, tokens: list[int]) -> StepPlan:
    name = f"{slot} {step}"
    return StepPlan(
        step,
        [ScheduledChunk(slot, 0, len(tokens), True, name)],
        [NewRequest(slot, name, tokens, len(tokens), GREEDY)],
        [BlockUpdate(slot, 0, [slot])],
        pipeline_stages=2,
    )


def decodes(slot: int, step: int, position: int) -> StepPlan:
    return StepPlan(step, [ScheduledChunk(slot, position, 1, True, f"{slot}")], pipeline_stages=2)


def launch(runner: StageRunner, plan: StepPlan) -> AwaitedStep:
    step = runner.launch_sampling(runner.launch_forward(plan))
    assert isinstance(step, AwaitedStep) == (runner.model_config.stage is not None and runner.model_config.stage.first)
    return step  # type: ignore[return-value]


def tokens_of(runner: StageRunner, slot: int, count: int) -> list[int]:
    found: list[int] = runner.tables.token_ids[slot, :count].tolist()
    return found


def test_a_step_is_done_when_the_last_stage_is(stages: tuple[StageRunner, StageRunner]) -> None:
    first, second = stages
    steps = [launch(first, enters(slot, slot, [slot + 1, *PROMPT])) for slot in range(2)]
    assert not steps[0].done()
    for slot in range(2):
        launch(second, enters(slot, slot, [slot + 1, *PROMPT]))
    assert steps[1].done()  # and so are those before it
    assert [step.received is not None for step in steps] == [True, True]
    for slot, step in enumerate(steps):
        ((token,),) = step.result().tokens
        assert tokens_of(first, slot, 6) == tokens_of(second, slot, 6) == [slot + 1, *PROMPT, token]


def test_the_first_stage_takes_the_token_that_it_goes_on_from(stages: tuple[StageRunner, StageRunner]) -> None:
    """Nobody has read the step's result."""
    first, second = stages
    for runner in (first, second):
        launch(runner, enters(2, 10, PROMPT))
    steps = [launch(first, decodes(2, 11, 4))]
    sampled = tokens_of(second, 2, 5)[-1]
    assert tokens_of(first, 2, 5) == [*PROMPT, sampled]
    launch(second, decodes(2, 11, 4))
    assert steps[0].result().tokens == [tokens_of(second, 2, 6)[-1:]]


def test_a_late_token_does_not_go_to_the_next_request_of_its_slot(stages: tuple[StageRunner, StageRunner]) -> None:
    first, second = stages
    late = launch(first, enters(3, 20, PROMPT))
    longer = [9] * 12
    after = launch(first, enters(3, 21, longer))
    launch(second, enters(3, 20, PROMPT))
    launch(second, enters(3, 21, longer))
    (token,) = after.result().tokens
    assert len(late.result().tokens) == 1
    assert tokens_of(first, 3, 13) == tokens_of(second, 3, 13) == [*longer, *token]


@pytest.mark.parametrize("right", [0, 1, 3])
def test_all_tokens_that_draft_tokens_bring_come_to_the_first_stage(
    stages: tuple[StageRunner, StageRunner], right: int
) -> None:
    """In the middle of a step with a decode before it and one behind it."""
    first, second = stages
    for step, plan in enumerate([enters(0, 30, PROMPT), *(decodes(0, 31 + more, 4 + more) for more in range(4))]):
        for runner in stages:
            launched = launch(runner, plan)
        assert len(launched.result().tokens) == 1, step
    known = tokens_of(second, 0, 9)
    for slot in range(3):
        for runner in stages:
            launch(runner, enters(slot, 40 + slot, PROMPT))
    drafts = [*known[5 : 5 + right], *((token + 1) % 50 for token in known[5 + right : 8])]
    plan = StepPlan(
        43,
        [
            ScheduledChunk(0, 4, 1, True, "0"),
            ScheduledChunk(2, 4, 4, True, "2", num_draft_tokens=3),
            ScheduledChunk(1, 4, 1, True, "1"),
        ],
        token_updates=[TokenUpdate(2, 5, drafts)],
        pipeline_stages=2,
    )
    awaited = launch(first, plan)
    launch(second, plan)
    brought = known[5 : 6 + right]
    assert awaited.result().tokens == [[known[5]], brought, [known[5]]]
    assert tokens_of(first, 2, 6 + right) == [*known[:5], *brought]
    assert tokens_of(first, 0, 6) == tokens_of(first, 1, 6) == known[:6]


def test_each_stage_has_its_layers_alone(stages: tuple[StageRunner, StageRunner]) -> None:
    first, second = stages
    whole = first.model_config.stage
    assert whole is not None
    held = [len(runner._kv_cache) for runner in stages]
    assert sum(held) == whole.num_layers
    assert held == [runner.model_config.num_layers for runner in stages]
    assert first.num_blocks == second.num_blocks
    assert torch.equal(first.tables.block_table, second.tables.block_table)
