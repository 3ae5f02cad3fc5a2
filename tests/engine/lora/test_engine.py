"""Adapters through scheduler, cache and runner: what each request gets in company is what the merged model alone gives
it, whatever else the requests want."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from engine_support.adapter_models import (
    FEATURES,
    GREEDY,
    RANKS,
    build_core,
    build_with_runner,
    check_equal,
    core_of,
    make_folders,
    prompt,
    run,
)
from engine_support.adapters import targets_of, write_adapter
from engine_support.heads import save_eagle3
from engine_support.tiny_models import engine_config

from blade_llm.engine.messages import GenerateRequest
from blade_llm.scheduling.request import RequestRefusedError
from blade_llm.speculative_options import speculative_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folders: Path = make_folders(tmp_path_factory.mktemp("models"))
    save_eagle3(folders / "head", eagle_aux_hidden_state_layer_ids=[0, 1, 1])
    return folders


SPECULATIVE: dict[str, dict[str, Any]] = {
    "ngram": {"ngram_min_match": 1},
    "draft": {"draft_model": "base"},
    "look_ahead": {"look_ahead_window_size": 4, "look_ahead_gram_size": 2},
    "eagle3": {"draft_model": "head"},
}
"""Speculative decoding beside adapters, with each method."""


@pytest.mark.parametrize("engine", ["room", "preempting", "chunks", "no prefix cache", *SPECULATIVE])
def test_each_feature_as_merged(folders: Path, engine: str) -> None:
    """Each feature with two adapters and without one, all in one engine at once; against one engine for each model."""
    options: dict[str, Any] = {
        "room": {},
        "preempting": {"max_kv_blocks": 24},
        "chunks": {"max_batch_tokens": 24},
        "no prefix cache": {"enable_prompt_cache": False},
        **{
            method: {"speculative": speculative_of({"method": method, **SPECULATIVE[method]}, folders.joinpath)}
            for method in SPECULATIVE
        },
    }[engine]

    def requests(adapter: str, named: bool) -> list[GenerateRequest]:
        made = []
        for number, (what, fields) in enumerate(FEATURES.items()):
            siblings = [f"{adapter}/{what}/{name}" for name in fields.get("sibling_ids", [])]
            made.append(
                GenerateRequest(
                    request_id=f"{adapter}/{what}",
                    prompt_token_ids=prompt(number),
                    adapter=adapter if named else "",
                    **{"sampling": GREEDY, **fields, "sibling_ids": siblings},
                )
            )
        return made

    core = core_of(folders, (2, 6), max_num_seqs=16, **options)
    wanted = [request for adapter in ("a2", "", "a6") for request in requests(adapter, True)]
    together = run(core, wanted)
    state = core.state(epoch="", sequence=0, draining=False)
    assert (state.preemptions_total > 0) == (engine == "preempting")
    assert (state.speculation is not None and state.speculation.accepted_tokens > 0) == (engine in SPECULATIVE)
    for adapter, folder in (("a2", "merged2"), ("", "base"), ("a6", "merged6")):
        alone = build_core(engine_config(folders / folder, max_model_len=256, max_num_seqs=16))
        for name, expected in run(alone, requests(adapter, False)).items():
            check_equal(together[name], expected)


def test_every_rank_in_one_batch(folders: Path) -> None:
    core = core_of(folders)
    both = run(
        core,
        [
            GenerateRequest(request_id=str(n), prompt_token_ids=prompt(n), sampling=GREEDY, adapter=f"a{n}")
            for n in range(len(RANKS))
        ],
    )
    for number in range(len(RANKS)):
        alone = build_core(engine_config(folders / f"merged{number}", max_model_len=256))
        request = GenerateRequest(request_id="1", prompt_token_ids=prompt(number), sampling=GREEDY)
        check_equal(both[str(number)], run(alone, [request])["1"])


def test_64_adapters_on_8_slots(folders: Path, tmp_path: Path) -> None:
    """More than host memory has room for, three requests each, in an order that wants another one every time."""
    targets = targets_of(folders / "base")
    for number in range(64):
        write_adapter(tmp_path / str(number), targets, rank=4, seed=100 + number)
    options = {"max_num_seqs": 16, "max_cpu_loras": 16, "lora_allowed_roots": (str(tmp_path),)}
    sampling = msgspec.structs.replace(GREEDY, max_tokens=6)
    core = core_of(folders, (), **options)

    def request(number: int, turn: int) -> GenerateRequest:
        return GenerateRequest(
            request_id=f"{number}.{turn}",
            prompt_token_ids=prompt(number, 20),
            sampling=sampling,
            adapter=str(tmp_path / str(number)),
        )

    found = run(core, [request(number, turn) for turn in range(3) for number in range(64)])
    assert not any(got.error for got in found.values())
    for number in range(64):
        assert found[f"{number}.0"].tokens == found[f"{number}.1"].tokens == found[f"{number}.2"].tokens
    for number in (0, 17, 63):
        alone = core_of(folders, (), **options)
        assert run(alone, [request(number, 0)])[f"{number}.0"].tokens == found[f"{number}.0"].tokens
    assert core.adapters is not None
    assert core.adapters.counts.host_evictions > 0
    assert len({tuple(got.tokens) for got in found.values()}) > 32


def test_the_prefix_cache_knows_adapters_by_their_content(folders: Path, tmp_path: Path) -> None:
    core = core_of(folders, (2, 3))
    write_adapter(tmp_path / "copy", targets_of(folders / "base"), rank=RANKS[2], seed=2)
    assert core.adapters is not None
    core.adapters.load_now("copy", str(tmp_path / "copy"))

    def cached(adapter: str, number: int) -> int:
        request = GenerateRequest(
            request_id=str(number), prompt_token_ids=prompt(0, 64), sampling=GREEDY, adapter=adapter
        )
        return run(core, [request])[str(number)].cached

    assert [cached(adapter, number) for number, adapter in enumerate(["a2", "a3", "", "a2", "copy"])] == [
        0,
        0,
        0,
        48,
        48,
    ]


def test_resuming_asks_for_the_content(folders: Path) -> None:
    core = core_of(folders, (2,))
    assert core.adapters is not None
    (digest,) = core.adapters.digests
    request = GenerateRequest(
        request_id="1", prompt_token_ids=prompt(0), sampling=GREEDY, adapter="a2", adapter_digest=digest
    )
    assert len(run(core, [request])["1"].tokens) == GREEDY.max_tokens
    with pytest.raises(RequestRefusedError, match="other weights"):
        core.add(msgspec.structs.replace(request, adapter_digest="00" * 32))
    assert not core.has_work


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_quantised_base_weights(folders: Path, quant: str) -> None:
    """The adapter itself is not quantised: what it adds is what it adds to the plain model."""
    request = GenerateRequest(request_id="1", prompt_token_ids=prompt(0), sampling=GREEDY, pooling="last", adapter="a2")

    def state(folder: str, adapter: str, **options: Any) -> np.ndarray:
        settings: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": 256, **options}
        if adapter:
            core = core_of(folders, (2,), **settings)
        else:
            core = build_core(engine_config(folders / folder, **settings))
        embedding = run(core, [msgspec.structs.replace(request, adapter=adapter)])["1"].embedding
        assert embedding is not None
        return embedding

    exact, base = state("merged2", "", dtype="float32"), state("base", "", dtype="float32")
    ours, quantised = state("base", "a2", quant=quant), state("base", "", quant=quant)

    def distance(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.linalg.norm(one - other))

    assert distance(ours, exact) < 2 * distance(quantised, base) + 0.1
    assert distance(ours, exact) < distance(quantised, exact)


def test_without_an_adapter_nothing_changes(folders: Path) -> None:
    """The same bits as of an engine that serves none."""
    request = GenerateRequest(request_id="1", prompt_token_ids=prompt(0), sampling=GREEDY, pooling="mean")
    plain = build_core(engine_config(folders / "base", max_model_len=256, dtype="bfloat16"))
    core = core_of(folders, (2,), dtype="bfloat16")
    run(core, [msgspec.structs.replace(request, pooling="", adapter="a2")])
    one, other = run(core, [request])["1"].embedding, run(plain, [request])["1"].embedding
    assert one is not None
    assert other is not None
    assert (one == other).all()


def test_one_call_for_all_layers_gives_the_same_bits(folders: Path) -> None:
    """In bf16 on a CPU, steps with adapters are one native call too."""
    requests = [
        GenerateRequest(
            request_id=str(number),
            prompt_token_ids=prompt(number),
            sampling=msgspec.structs.replace(GREEDY, logprobs=2),
            adapter=adapter,
        )
        for number, adapter in enumerate(["a2", "", "a6", "a2"])
    ]
    modules = tuple((f"a{name}", str(folders / str(name))) for name in (2, 6))
    config = engine_config(
        folders / "base", enable_lora=True, max_lora_rank=256, dtype="bfloat16", lora_modules=modules, max_model_len=256
    )
    fused, one_by_one = build_with_runner(config), build_with_runner(config)
    model: Any = fused[1].model
    if model.fused is None:
        pytest.skip("this CPU has no native call")
    assert fused[1].adapters is not None
    cast("Any", one_by_one[1].model).fused = None
    expected = run(one_by_one[0], requests)
    for name, got in run(fused[0], requests).items():
        assert got.tokens == expected[name].tokens
        assert [each.chosen for each in got.logprobs] == [each.chosen for each in expected[name].logprobs]
