"""Heads that draft from hidden states, beside a model that ranks have divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_support.draft_recorder import Recorder
from engine_support.feature_load import Result, check_equal, core_for, free_drafts, requests_of, run
from engine_support.heads import MTP_ROWS, Eagle3Reference, MTPReference, save_eagle3, save_with_mtp
from engine_support.thread_ranks import ThreadRanks
from engine_support.tiny_models import engine_config, save_model

from blade_llm.config import EngineConfig, SpeculativeConfig
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.llm import LLM
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import shard_model
from blade_llm.runner import build_runner
from blade_llm.runner.draft_config import draft_model_config
from blade_llm.sampling.parameters import SamplingParams

DEMO = Path(__file__).parents[3] / "examples" / "demo_model"
PROMPT = [(7 * i + 3) % 190 + 3 for i in range(75)]
GREEDY = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
MTP = SpeculativeConfig(method="mtp", gamma=3)
PREEMPTING = {"max_num_seqs": 24, "max_kv_blocks": 40}
SMALL_STEPS = {"max_num_seqs": 3, "max_batch_tokens": 24, "enable_prompt_cache": False}


def core_of_ranks(config: EngineConfig) -> EngineCore:
    return core_for(config, ThreadRanks(config), step_seconds=free_drafts())  # type: ignore[arg-type]


def record_drafts(
    folder: Path, speculative: SpeculativeConfig, size: int, **limits: Any
) -> list[tuple[list[int], list[int]]]:
    """Of a prompt that is computed in parts, and of one that goes on after the same beginning, which is cached."""
    config = engine_config(
        folder, max_model_len=256, max_batch_tokens=40, speculative=speculative, tensor_parallel_size=size, **limits
    )
    core = core_of_ranks(config)
    recorder = Recorder(core)
    for name, prompt in (("first", PROMPT), ("second", [*PROMPT[:64], 5, 6, 7])):
        run(core, [GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=GREEDY)], stagger=1)
    assert len(recorder.drafts) > 10
    return recorder.drafts


@pytest.mark.parametrize(
    ("row", "size"),
    [
        pytest.param(row, size, marks=[] if size == (2, 4)[number % 2] else pytest.mark.soak)
        for number, row in enumerate(MTP_ROWS)
        for size in (2, 4)
    ],
)
def test_layers_for_multi_token_prediction_draft_what_transformers_layers_say(
    tmp_path: Path, row: str, size: int
) -> None:
    save_with_mtp(tmp_path, row)
    reference = MTPReference(tmp_path, row)
    for known, drafted in record_drafts(tmp_path, MTP, size):
        assert drafted == reference.draft(known, len(drafted)), known


@pytest.mark.parametrize(
    ("head", "size"),
    [
        pytest.param(head, size, id=f"{name}-{size}", marks=[] if size == usual else pytest.mark.soak)
        for name, head, usual in (
            ("own vocabulary", {}, 2),
            ("all tokens", {"vocab_size": 199}, 4),
            ("speculators", {"speculators": True, "norm_before_residual": True}, 2),
        )
        for size in (2, 4)
    ],
)
def test_eagle3_drafts_what_transformers_attention_says(tmp_path: Path, head: dict[str, Any], size: int) -> None:
    target, folder = tmp_path / "target", tmp_path / "head"
    save_model(target, "llama", num_hidden_layers=5)
    save_eagle3(folder, **head)
    reference = Eagle3Reference(folder, target)
    speculative = SpeculativeConfig(method="eagle3", draft_model=str(folder), gamma=3)
    for known, drafted in record_drafts(target, speculative, size):
        assert drafted == reference.draft(known, len(drafted)), known


def test_a_head_that_the_ranks_cannot_divide_is_whole_on_each(tmp_path: Path) -> None:
    """4 ranks divide its heads, but not its MLP of 94."""
    target, folder = tmp_path / "target", tmp_path / "head"
    save_model(target, "llama", num_hidden_layers=5)
    save_eagle3(folder, inner=94)
    reference = Eagle3Reference(folder, target)
    speculative = SpeculativeConfig(method="eagle3", draft_model=str(folder), gamma=3)
    whole = read_model_config(target)
    sizes = {}
    for ranks in (2, 4):
        config = engine_config(target, speculative=speculative, tensor_parallel_size=ranks)
        own = draft_model_config(config, shard_model(whole, ranks - 1, ranks), "float32")
        assert own is not None
        sizes[ranks] = own.model.kv.num_heads
    assert sizes == {2: 1, 4: 2}
    for known, drafted in record_drafts(target, speculative, 4):
        assert drafted == reference.draft(known, len(drafted)), known


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model with a layer for multi-token prediction, and a head of EAGLE-3 for it."""
    target, head = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("head")
    save_with_mtp(target, "qwen3")
    save_eagle3(head, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    return {"target": target, "head": head}


def speculative_of(method: str, folders: dict[str, Path]) -> SpeculativeConfig:
    head = str(folders["head"]) if method == "eagle3" else ""
    return SpeculativeConfig(method=method, draft_model=head, gamma=3)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=[12, pytest.param(24, marks=pytest.mark.soak)], ids="{} requests".format)
def requests(request: pytest.FixtureRequest) -> list[GenerateRequest]:
    """At least two of each kind."""
    return requests_of(request.param)


@pytest.fixture(scope="module")
def of_one_rank(folders: dict[str, Path], requests: list[GenerateRequest]) -> dict[str, Result]:
    return run(core_for(engine_config(folders["target"], max_num_seqs=24, max_model_len=256)), requests, stagger=1)


@pytest.mark.parametrize("method", ["mtp", "eagle3"])
@pytest.mark.parametrize(
    ("size", "limits"),
    [
        (2, PREEMPTING),
        pytest.param(4, PREEMPTING, marks=pytest.mark.soak),
        (2, SMALL_STEPS),
        pytest.param(4, SMALL_STEPS, marks=pytest.mark.soak),
    ],
    ids=["2-preempting", "4-preempting", "2-small steps", "4-small steps"],
)
def test_tokens_are_those_of_one_rank_without_drafts(
    folders: dict[str, Path],
    requests: list[GenerateRequest],
    of_one_rank: dict[str, Result],
    size: int,
    method: str,
    limits: dict[str, Any],
) -> None:
    """Greedy and drawn, with grammars, penalties and log-probabilities, in batches."""
    config = engine_config(
        folders["target"],
        max_model_len=256,
        speculative=speculative_of(method, folders),
        tensor_parallel_size=size,
        **limits,
    )
    core = core_of_ranks(config)
    found = run(core, requests, stagger=1)
    assert found.keys() == of_one_rank.keys()
    for name, result in found.items():
        check_equal(result, of_one_rank[name])
    state = core.state(epoch="", sequence=0, draining=False)
    assert state.speculation is not None
    assert state.speculation.draft_tokens >= state.speculation.drafts > 0
    assert not state.speculation.failed
    assert (state.preemptions_total > 0) == ("max_kv_blocks" in limits)
    ranks: Any = core._runner
    assert len({group.reduced for group in ranks.groups}) == 1


@pytest.mark.parametrize("method", ["mtp", "eagle3"])
def test_ranks_plan_for_their_parts_of_the_head(folders: dict[str, Path], method: str) -> None:
    """Keys and values by rank; the states of the model are whole on each, so less than twice the tokens fit."""
    given, config = 1 << 20, {"max_num_seqs": 100, "speculative": speculative_of(method, folders)}
    one = build_runner(engine_config(folders["target"], kv_cache_bytes=given, **config))
    two = ThreadRanks(engine_config(folders["target"], kv_cache_bytes=2 * given, tensor_parallel_size=2, **config))
    assert one.draft is not None
    kept = []
    for runner in (one, *two.runners):
        kept.append(runner.draft.nbytes - runner._draft_weights.model.nbytes)  # type: ignore[union-attr]
        assert given * 0.9 < kept[-1] + runner.memory_plan.kv_cache <= given * 1.02  # a block for padding on top
    kv, of_head, states = 2 * 3 * 2 * 16, 2 * 2 * 16, 64
    ratio = (kv + of_head + states) / ((kv + of_head) / 2 + states)
    assert two.num_blocks == pytest.approx(one.num_blocks * ratio, abs=3)
    weights = [runner._draft_weights.model.nbytes for runner in (one, two.runners[0])]  # type: ignore[union-attr]
    assert weights[1] < weights[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_processes_draft_with_a_trained_head(dtype: str) -> None:
    """They meet in shared memory; in bf16 one call computes the layers up to each whose states the head reads."""
    question = [{"role": "user", "content": "What does len do? What does len do?"}]
    sampling = [
        SamplingParams(temperature=temperature, seed=5, max_tokens=40, ignore_eos=True) for temperature in (0.0, 0.8)
    ]
    found = []
    for config in (
        {},
        {"tensor_parallel_size": 2, "speculative": {"method": "eagle3", "draft_model": DEMO / "eagle3"}},
    ):
        llm = LLM(DEMO / "model", dtype=dtype, kv_cache_bytes=32 << 20, max_model_len=256, **config)  # type: ignore[arg-type]
        found.append([llm.chat(question, each)[0] for each in sampling])
    assert sum(output.accepted_tokens for output in found[1]) > 5
    if dtype == "float32":
        assert [each.outputs[0].token_ids for each in found[1]] == [each.outputs[0].token_ids for each in found[0]]
