"""Adapters of ranks: each has its part of their matrices, and all together compute what the merged model computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from engine_support.adapter_models import build_core
from engine_support.adapters import FORMS, ThroughRunner, merge, targets_of, write_adapter
from engine_support.families import ROWS, save_row
from engine_support.family_proof import SCENARIOS, Comparison
from engine_support.feature_load import Result, check_equal, free_drafts, requests_of, run
from engine_support.heads import save_eagle3
from engine_support.rank_adapters import load_everywhere, ranked_core
from engine_support.thread_ranks import thread_ranks
from engine_support.tiny_models import engine_config, save_model

from blade_llm.config import SpeculativeConfig, SpeculativeMethod
from blade_llm.engine.messages import GenerateRequest
from blade_llm.lora.memory import adapter_bytes
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import pipeline_parallel_problem, shard_model, tensor_parallel_problem
from blade_llm.runner import build_runner
from blade_llm.sampling.parameters import SamplingParams

CASES = [name for name, row in ROWS.items() if row.through == "blade"]
THOROUGH = [("qwen2", 1, 2), ("mixtral", 4, 1)]
"""Rows in every kind of step also where the long tests are not run, tensor ranks of each stage, stages."""
LAYOUTS = [(2, 1), (4, 1), (1, 2), (2, 2), (1, 3)]
"""Tensor ranks of each stage, stages."""


@pytest.mark.parametrize("name", FORMS)
def test_each_form_in_a_batch(name: str, tmp_path: Path) -> None:
    _compare(name, 2, 1, tmp_path, ["prefix_hit", "batch_of_eight"])


@pytest.mark.parametrize(("name", "size", "stages"), THOROUGH)
def test_every_kind_of_step(name: str, size: int, stages: int, tmp_path: Path) -> None:
    _compare(name, size, stages, tmp_path, list(SCENARIOS))


@pytest.mark.soak
@pytest.mark.parametrize(("size", "stages"), LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_step_of_every_family(name: str, size: int, stages: int, tmp_path: Path) -> None:
    _compare(name, size, stages, tmp_path, list(SCENARIOS))


def _compare(name: str, size: int, stages: int, root: Path, scenarios: list[str]) -> None:
    row, folder = ROWS[name], root / "base"
    folder.mkdir()
    save_row(folder, row)
    model = read_model_config(folder)
    if problem := tensor_parallel_problem(model, size) or pipeline_parallel_problem(model, stages):
        pytest.skip(problem)
    adapter = write_adapter(root / "adapter", targets_of(folder))
    merged = ThroughRunner(build_runner(engine_config(merge(folder, adapter, root / "merged"), **row.runner)))
    ranks = thread_ranks(folder, size, stages, enable_lora=True, **row.runner)
    compare = Comparison(ranks, merged)  # type: ignore[arg-type]
    load_everywhere(ranks, adapter, 1)
    compare.driver.place_loaded(2, 1)
    compare.driver.adapter = 2
    for scenario in scenarios:
        SCENARIOS[scenario](compare)


RANKS = {"a": 8, "b": 16, "c": 3}
"""Adapters, with their ranks."""
SETTINGS: dict[str, Any] = {"max_num_seqs": 24, "max_model_len": 256, "enable_lora": True, "max_cpu_loras": 3}


@pytest.fixture(scope="module", params=[12, pytest.param(24, marks=pytest.mark.soak)], ids="{} requests".format)
def requests(request: pytest.FixtureRequest) -> list[GenerateRequest]:
    """At least two of each kind, and beams."""
    made = [
        msgspec.structs.replace(each, adapter=["a", "", "b", "c", "a"][number % 5])
        for number, each in enumerate(requests_of(request.param))
    ]
    return made + [
        GenerateRequest(
            request_id=f"beams {name}",
            sibling_ids=[f"beams {name} {beam}" for beam in (1, 2)],
            prompt_token_ids=list(range(20, 60)),
            sampling=SamplingParams(temperature=0.0, max_tokens=20, beam_width=3, seed=1),
            adapter=name,
        )
        for name in ("a", "b")
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model ``base``, its adapters ``a``, ``b`` and ``c``; a smaller model in ``draft``, a head in ``eagle3``."""
    root: Path = tmp_path_factory.mktemp("models")
    save_model(root / "base", "qwen2")
    save_model(root / "draft", "llama", num_hidden_layers=1)
    save_eagle3(root / "eagle3", eagle_aux_hidden_state_layer_ids=[0, 1, 1])
    for seed, (name, rank) in enumerate(RANKS.items()):
        write_adapter(root / name, targets_of(root / "base"), rank=rank, seed=seed)
    return root


def settings(folder: Path, **options: Any) -> dict[str, Any]:
    return {**SETTINGS, "lora_modules": tuple((name, str(folder / name)) for name in RANKS), "max_loras": 3, **options}


@pytest.fixture(scope="module")
def of_one_rank(folder: Path, requests: list[GenerateRequest]) -> dict[str, Result]:
    return run(build_core(engine_config(folder / "base", **settings(folder))), requests, stagger=1)


def check_all(found: dict[str, Result], expected: dict[str, Result]) -> None:
    assert found.keys() == expected.keys()
    for name, result in found.items():
        check_equal(result, expected[name])


def test_adapters_make_a_difference(
    folder: Path, requests: list[GenerateRequest], of_one_rank: dict[str, Result]
) -> None:
    """What the other tests compare is not the base model's alone."""
    plain = [msgspec.structs.replace(request, adapter="") for request in requests]
    base = run(build_core(engine_config(folder / "base", **settings(folder))), plain, stagger=1)
    differing = {name for name, result in base.items() if result.tokens != of_one_rank[name].tokens}
    assert len(differing) > len(base) / 3


@pytest.mark.parametrize("engine", ["room", "preempting", "few slots", "no prefix cache"])
@pytest.mark.parametrize(
    ("size", "stages"), [(2, 1), (1, 2), *(pytest.param(*each, marks=pytest.mark.soak) for each in [(4, 1), (2, 2)])]
)
def test_each_feature_as_one_rank_has_it(
    folder: Path,
    requests: list[GenerateRequest],
    of_one_rank: dict[str, Result],
    size: int,
    stages: int,
    engine: str,
) -> None:
    """Three adapters and the base model in the same batches."""
    options: dict[str, dict[str, Any]] = {
        "room": {},
        "preempting": {"max_kv_blocks": 20},
        "few slots": {"max_loras": 1},
        "no prefix cache": {"enable_prompt_cache": False},
    }
    layout = {"tensor_parallel_size": size, "pipeline_parallel_size": stages}
    config = engine_config(folder / "base", **settings(folder, **layout, **options[engine]))
    core, ranks = ranked_core(config)
    check_all(run(core, requests, stagger=1), of_one_rank)
    assert (core.state(epoch="", sequence=0, draining=False).preemptions_total > 0) == (engine == "preempting")
    assert len({group.reduced for group in ranks.groups}) == 1
    assert core.adapters is not None
    assert (core.adapters.counts.device_loads > config.max_loras) == (engine == "few slots")


@pytest.mark.parametrize("method", ["ngram", "look_ahead", "draft", "eagle3"])
def test_draft_tokens_are_verified_with_adapters(
    folder: Path, requests: list[GenerateRequest], of_one_rank: dict[str, Result], method: str
) -> None:
    """Neither a draft model, which is whole on every rank, nor a head, which is divided, has adapters."""
    drafts = str(folder / method) if method in ("draft", "eagle3") else ""
    speculative = SpeculativeConfig(method=cast("SpeculativeMethod", method), gamma=3, draft_model=drafts)
    options = settings(folder, tensor_parallel_size=2, max_kv_blocks=40, speculative=speculative)
    core, _ = ranked_core(engine_config(folder / "base", **options), step_seconds=free_drafts())
    check_all(run(core, requests, stagger=1), of_one_rank)
    counts = core.state(epoch="", sequence=0, draining=False).speculation
    assert counts is not None
    assert counts.accepted_tokens > 0


def test_what_leaves_host_memory_leaves_that_of_every_rank(
    folder: Path, requests: list[GenerateRequest], of_one_rank: dict[str, Result]
) -> None:
    """Requests name folders, more than host memory has room for."""
    options = settings(folder, lora_modules=(), max_loras=1, max_cpu_loras=2, lora_allowed_roots=(str(folder),))
    core, ranks = ranked_core(engine_config(folder / "base", tensor_parallel_size=2, **options))
    by_path = [
        msgspec.structs.replace(request, adapter=request.adapter and str(folder / request.adapter))
        for request in requests
    ]
    check_all(run(core, by_path, stagger=1), of_one_rank)
    assert core.adapters is not None
    assert core.adapters.counts.host_evictions > 0
    held = [set(runner.adapters.loaded) for runner in ranks.runners if runner.adapters is not None]
    assert len(held) == 2
    assert held[0] == held[1]
    assert len(held[0]) == 2


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_share_the_memory_of_an_adapter(folder: Path, size: int) -> None:
    """Of each layer a rank has one of the two matrices whole; keys and values are copied where heads are too few."""
    config, model = engine_config(folder / "base", **settings(folder)), read_model_config(folder / "base")
    whole = adapter_bytes(config, model, "float32", on_gpu=False)
    ranks = thread_ranks(folder / "base", size, enable_lora=True, max_cpu_loras=3, max_loras=3)
    load_everywhere(ranks, folder / "b", 1)
    for rank, runner in enumerate(ranks.runners):
        planned = adapter_bytes(config, shard_model(model, rank, size), "float32", on_gpu=False)
        assert whole / size < planned < whole
        assert runner.memory_plan.lora == planned
        assert runner.adapters is not None
        assert 3 * runner.adapters.loaded[1].nbytes == planned  # of the largest rank, as "b" has it
        assert adapter_bytes(config, shard_model(model, rank, size), "float32", on_gpu=True) < adapter_bytes(
            config, model, "float32", on_gpu=True
        )
