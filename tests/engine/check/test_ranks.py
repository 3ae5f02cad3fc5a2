"""The check of an engine of several ranks: models they cannot divide, and memory by rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import ROWS, save_row
from hub_support.tiny_model import make_model

from blade_llm.check.items import run_items
from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.check.model import Wanted, check_model
from blade_llm.check.rank_memory import GRAPH_BYTES_PER_LAYER, RANK_RUNTIME_BYTES, RUNTIME_BYTES, Gpu
from blade_llm.cli.check import main
from blade_llm.config import EngineConfig
from blade_llm.models.implementation import read_model_config
from blade_llm.models.memory import weight_bytes
from blade_llm.models.sharding import shard_model
from blade_protocol.check import CheckItem

GIB = 1 << 30
# The tiny model in fp32, divided between two ranks: vectors of a layer's width stay whole.
BLOCK = 1024
MATRICES = 16 * 16 + 2 * (8 * 16 * 2 + 4 * 16 * 2 + 12 * 16 * 3)
WEIGHTS = 4 * (MATRICES + 16 * 16 + 16 + 2 * (32 + 16))


def check(model: Path, limit: int | None = None, gpu: Gpu | None = None, ranks: int = 2, **flags: Any) -> CheckItem:
    settings = {"dtype": "float32", "max_num_seqs": 4, "max_batch_tokens": 16, "kv_cache_bytes": 80 * BLOCK, **flags}
    config = EngineConfig(model=str(model), served_names=(), tensor_parallel_size=ranks, **settings)
    return check_memory_fit(config, limit, gpu)


def figure(detail: str, after: str) -> int:
    return int(detail.partition(f"{after} ")[2].split()[0])


def test_on_cpu_every_rank_has_its_part_and_their_sum_has_to_fit(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    item = check(model, 4 * GIB)
    assert (item.status, item.detail.startswith("float32, each of 2 ranks: weights ")) == ("PASS", True)
    assert figure(item.detail, "weights") == WEIGHTS
    # 80 blocks for both together, and so as many tokens as one rank would have of these bytes.
    assert f"KV cache {40 * BLOCK} bytes (0.00 GiB) (40 blocks, 640 tokens, 2.5 requests of 256 tokens)" in item.detail
    assert "640 tokens" in check(model, 4 * GIB, ranks=1).detail
    runtime = RUNTIME_BYTES + RANK_RUNTIME_BYTES
    of_rank = WEIGHTS + figure(item.detail, "activations") + 40 * BLOCK
    assert f"= {of_rank} bytes (0.00 GiB), times 2 + runtime {runtime} bytes (0.75 GiB) = " in item.detail
    assert figure(item.detail, "(0.75 GiB) =") == 2 * of_rank + runtime


@pytest.mark.parametrize("gpu", [None, Gpu(GIB, GIB)], ids=["cpu", "gpu"])
def test_a_rank_has_its_part_of_the_adapters(tmp_path: Path, gpu: Gpu | None) -> None:
    """Half of one of the two matrices of each layer, and the other whole."""
    model, limit = make_model(tmp_path), None if gpu else 4 * GIB

    def adapters(ranks: int) -> int:
        flags = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 64}
        return figure(check(model, limit, gpu, ranks, **flags).detail, "adapters")

    assert adapters(1) / 2 < adapters(2) < adapters(1)
    if gpu is None:
        # q, k, v, o, gate, up, down of two layers: inputs and outputs of each, of which a rank has half of either.
        whole = [(16, 16), (16, 8), (16, 8), (16, 16), (16, 24), (16, 24), (24, 16)]
        parts = [(16, 8), (16, 4), (16, 4), (8, 16), (16, 12), (16, 12), (12, 16)]
        for ranks, layers in ((1, whole), (2, parts)):
            assert adapters(ranks) == 8 * 4 * 64 * 2 * sum(map(sum, layers))


def test_the_cache_that_is_named_for_all_ranks_passes(tmp_path: Path) -> None:
    model, fixed = make_model(tmp_path), RUNTIME_BYTES + RANK_RUNTIME_BYTES
    flags = {"max_num_seqs": 32768}
    activations = figure(check(model, 64 * GIB, **flags).detail, "activations")
    limit = fixed + 2 * (WEIGHTS + activations) + GIB // 2
    item = check(model, limit, kv_cache_bytes=2 * GIB, **flags)
    assert item.status == "FAILED"
    fitting = figure(item.detail, "--kv_cache_bytes")
    assert check(model, limit, **flags | {"kv_cache_bytes": fitting}).status == "PASS"
    assert check(model, limit, **flags | {"kv_cache_bytes": fitting + 2 * BLOCK}).status != "PASS"


def test_a_cache_without_room_for_one_request_names_that_of_all_ranks(tmp_path: Path) -> None:
    item = check(make_model(tmp_path), 4 * GIB, kv_cache_bytes=2 * BLOCK, max_model_len=200)
    assert (item.status, f"raise --kv_cache_bytes to {2 * 13 * BLOCK}, or lower" in item.detail) == ("FAILED", True)


def test_on_gpus_one_rank_has_to_fit_into_one_of_them(tmp_path: Path) -> None:
    model, enough = make_model(tmp_path), Gpu(GIB, GIB)
    item = check(model, gpu=enough, kv_cache_bytes=40 * BLOCK)
    assert (item.status, figure(item.detail, "weights")) == ("PASS", WEIGHTS)
    assert item.detail.startswith("float32, each of 2 ranks: ")
    assert f"KV cache {40 * BLOCK} bytes (0.00 GiB) (40 blocks" in item.detail
    needed = WEIGHTS + figure(item.detail, "activations") + figure(item.detail, "CUDA graphs")
    assert figure(item.detail, "CUDA graphs") > (3 + 1) * 2 * GRAPH_BYTES_PER_LAYER
    room = {"max_gpu_memory_utilization": 1.0, "kv_cache_bytes": None}
    assert "(20 blocks" in check(model, gpu=Gpu(needed + 20 * BLOCK, GIB), **room).detail
    assert check(model, gpu=Gpu(needed, GIB), **room).status == "FAILED"


def test_the_gpu_with_the_least_memory_decides_and_fewer_than_ranks_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = [(3 * GIB, 8 * GIB), (GIB, 4 * GIB), (2 * GIB, 8 * GIB)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(memory))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: memory[index])
    model = make_model(tmp_path)
    assert f"(0.9 of the GPU's {4 * GIB} bytes (4.00 GiB), {GIB} bytes (1.00 GiB) free)" in check(model).detail
    assert f"(0.9 of the GPU's {8 * GIB} bytes (8.00 GiB), {3 * GIB} bytes" in check(model, ranks=1).detail
    item = check(model, ranks=4)
    assert (item.status, item.detail.partition(";")[0]) == ("FAILED", "4 ranks need as many GPUs, 3 are visible")


def test_a_model_that_the_ranks_cannot_divide_fails_both_items_alike(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    item = check(model, 4 * GIB, ranks=3)
    says = f"{model}: --tensor_parallel_size 3 does not divide the model's 4 attention heads; give "
    assert (item.status, item.detail.startswith(says)) == ("FAILED", True)
    found = check_model(model, tensor_parallel_size=3)
    assert (found.status, found.detail) == ("FAILED", item.detail)
    assert check_model(model, tensor_parallel_size=2).status == "PASS"
    config = EngineConfig(model=str(model), served_names=(), tensor_parallel_size=3)
    items = run_items(("check_memory_fit", "check_model"), lambda: config, Wanted(), lambda _: None)
    assert [each.detail for each in items] == [item.detail, item.detail]


def test_the_program_has_the_servers_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--items", "check_memory_fit", "--model", str(make_model(tmp_path)), "--max_num_seqs", "4"]
    assert main([*arguments, "--tensor_parallel_size", "2"]) == 0
    assert "each of 2 ranks: weights" in capsys.readouterr().out
    assert main([*arguments, "-tp", "5"]) == 1
    assert "--tensor_parallel_size 5 does not divide" in capsys.readouterr().out


def test_the_rank_with_most_experts_is_planned_for(tmp_path: Path) -> None:
    """Of 6 experts 4 ranks have one, two, one and two."""
    save_row(tmp_path, ROWS["qwen2-moe-some"])
    flags: dict[str, Any] = {"ranks": 4, "kv_cache_bytes": None}
    config = read_model_config(tmp_path)
    weights = [weight_bytes(shard_model(config, rank, 4, expert_parallel=True), "float32") for rank in range(4)]
    assert weights[0] < weights[3]
    for limit, gpu in ((4 * GIB, None), (None, Gpu(GIB, GIB))):
        item = check(tmp_path, limit, gpu, enable_expert_parallel=True, **flags)
        assert (item.status, figure(item.detail, "weights")) == ("PASS", max(weights))
        assert figure(check(tmp_path, limit, gpu, **flags).detail, "weights") < max(weights)


def test_experts_that_there_are_not_fail_both_items(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    says = f"{model}: --enable_expert_parallel: the model (Qwen2ForCausalLM) has no experts; leave the flag out"
    found = check_model(model, tensor_parallel_size=2, enable_expert_parallel=True)
    assert (found.status, found.detail) == ("FAILED", says)
    item = check(model, 4 * GIB, enable_expert_parallel=True)
    assert (item.status, item.detail) == ("FAILED", says)
