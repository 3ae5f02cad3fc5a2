"""Many adapters at once and one after the other, each as its merged model: up to 64 in one batch, ranks of 1 to 256,
resumed streams, replaced adapters, and quantised base weights in company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_support.adapter_models import GREEDY, build_core, check_equal, core_of, make_folders, prompt, run
from engine_support.adapters import merge, targets_of, write_adapter
from engine_support.tiny_models import engine_config

from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import AdapterReply, GenerateRequest, LoadAdapter

SLOTS = 64


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folders(tmp_path_factory.mktemp("models"))


def request(number: int, adapter: str = "", **fields: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id=str(number),
        prompt_token_ids=prompt(number, 24),
        sampling=msgspec.structs.replace(GREEDY, max_tokens=16, logprobs=1),
        adapter=adapter,
        **fields,
    )


def check_batches(folders: Path, tmp_path: Path, ranks: list[int], compared: list[int]) -> None:
    """Adapters of ``ranks`` in batches of 64 different ones; those that are ``compared`` are as merged."""
    targets = targets_of(folders / "base")
    for rank in ranks:
        write_adapter(tmp_path / str(rank), targets, rank=rank, seed=1000 + rank)
    options = {"max_loras": SLOTS, "max_num_seqs": SLOTS, "max_batch_tokens": 4096}
    core = core_of(folders, (), lora_allowed_roots=(str(tmp_path),), **options)
    requests = [request(rank, str(tmp_path / str(rank))) for rank in ranks]
    found = run(core, requests)
    assert core.adapters is not None
    assert core.adapters.counts.device_loads == len(ranks)
    for rank in compared:
        merged = merge(folders / "base", tmp_path / str(rank), tmp_path / f"merged{rank}")
        alone = build_core(engine_config(merged, max_model_len=256))
        check_equal(found[str(rank)], run(alone, [request(rank)])[str(rank)])


def test_64_different_adapters_in_one_batch(folders: Path, tmp_path: Path) -> None:
    check_batches(folders, tmp_path, list(range(1, SLOTS + 1)), [1, 2, 31, 64])


def test_64_of_them_do_run_at_once(folders: Path, tmp_path: Path) -> None:
    targets = targets_of(folders / "base")
    for number in range(SLOTS):
        write_adapter(tmp_path / str(number), targets, rank=2, seed=number)
    options = {"max_loras": SLOTS, "max_num_seqs": SLOTS, "max_batch_tokens": 4096}
    core = core_of(folders, (), **options)
    assert core.adapters is not None
    for number in range(SLOTS):
        core.adapters.load_now(str(number), str(tmp_path / str(number)))
        core.add(request(number, str(number)))
    most = 0
    while core.has_work:
        core.step()
        most = max(most, core.state(epoch="", sequence=0, draining=False).running)
    assert most == SLOTS


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", [1, 65, 129, 193])
def test_every_rank_as_merged(folders: Path, tmp_path: Path, first: int) -> None:
    ranks = list(range(first, first + SLOTS))
    check_batches(folders, tmp_path, ranks, ranks)


@pytest.mark.parametrize("done", [1, 23, 59])
def test_a_resumed_stream_goes_on_as_it_would_have(folders: Path, done: int) -> None:
    whole = run(core_of(folders, (3,)), [GenerateRequest(**_greedy(), adapter="a3")])["1"].tokens
    other = core_of(folders, (3, 4))
    assert other.adapters is not None
    digest = other.adapters.digests[0]
    rest = GenerateRequest(**_greedy(), output_token_ids=whole[:done], adapter="a3", adapter_digest=digest)
    company = GenerateRequest(**{**_greedy(), "request_id": "2"}, adapter="a4")
    assert run(other, [company, rest])["1"].tokens == whole[done:]
    merged = build_core(engine_config(folders / "merged3", max_model_len=256))
    assert run(merged, [GenerateRequest(**_greedy())])["1"].tokens == whole


def _greedy() -> dict[str, Any]:
    return {"request_id": "1", "prompt_token_ids": prompt(0), "sampling": GREEDY}


def test_replaced_while_it_answers(folders: Path) -> None:
    """Who runs ends with the old weights, who comes later gets the new ones; each as its merged model."""
    core = core_of(folders, (2,))
    core.add(GenerateRequest(**_greedy(), adapter="a2"))
    got: dict[str, list[int]] = {"1": [], "2": []}
    _steps(core, got, lambda: len(got["1"]) >= 5)
    replies: list[AdapterReply] = []
    core.change_adapters(LoadAdapter(call_id=1, name="a2", path=str(folders / "5"), replace=True), replies.append)
    _steps(core, got, lambda: bool(replies))
    assert replies[0].error is None
    core.add(GenerateRequest(**{**_greedy(), "request_id": "2"}, adapter="a2"))
    _steps(core, got, lambda: not core.has_work)
    for name, folder in (("1", "merged2"), ("2", "merged5")):
        alone = build_core(engine_config(folders / folder, max_model_len=256))
        assert got[name] == run(alone, [GenerateRequest(**_greedy())])["1"].tokens


def _steps(core: EngineCore, got: dict[str, list[int]], ended: Any) -> None:
    while not ended():
        for output in core.step():
            got[output.request_id] += output.token_ids


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_quantised_base_weights_in_company(folders: Path, quant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three adapters and the base in one engine: each as alone. In fp32, which torch alone computes, so that nothing
    depends on the batch."""
    monkeypatch.setattr("blade_llm.runner.device.torch_only", lambda: True)
    options: dict[str, Any] = {"quant": quant, "dtype": "float32"}
    several = [request(number, adapter) for number, adapter in enumerate(("a1", "", "a4", "a6"))]
    together = run(core_of(folders, (1, 4, 6), **options), several)
    for each in several:
        check_equal(together[each.request_id], run(core_of(folders, (1, 4, 6), **options), [each])[each.request_id])
    assert len({tuple(got.tokens) for got in together.values()}) == 4
