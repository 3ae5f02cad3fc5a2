"""The memory plan of an engine on several machines: each plans for its own ranks, and meets nobody for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hub_support.tiny_model import make_model

from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.check.rank_memory import RANK_RUNTIME_BYTES, RUNTIME_BYTES, Gpu
from blade_llm.cli.check import main
from blade_llm.config import EngineConfig, SpeculativeConfig
from blade_protocol.check import CheckItem

GIB = 1 << 30
# The tiny model in fp32, divided between two tensor ranks: elements of a layer and of the table, and bytes of a block
# of a layer's keys and values.
LAYER = 8 * 16 * 2 + 4 * 16 * 2 + 12 * 16 * 3 + 32 + 16
EMBEDDING = 16 * 16
LAYER_BLOCK = 512


def check(
    model: Path,
    node_rank: int,
    limit: int | None = None,
    gpu: Gpu | None = None,
    ranks: tuple[int, int] = (2, 1),
    **flags: Any,
) -> CheckItem:
    """``ranks``: of a layer, and stages."""
    settings = {"dtype": "float32", "max_num_seqs": 4, "max_batch_tokens": 16, "nnodes": 2, **flags}
    tensor, stages = ranks
    config = EngineConfig(
        model=str(model),
        served_names=(),
        node_rank=node_rank,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=stages,
        **settings,
    )
    return check_memory_fit(config, limit, gpu)


def figure(detail: str, after: str) -> int:
    return int(detail.partition(f"{after} ")[2].split()[0])


def test_on_cpu_the_bytes_of_the_cache_are_this_machines_and_only_its_ranks_share_them(tmp_path: Path) -> None:
    model, block = make_model(tmp_path), 2 * LAYER_BLOCK
    item = check(model, 1, 4 * GIB, kv_cache_bytes=40 * block)
    weights = 4 * (2 * EMBEDDING + 16 + 2 * LAYER)
    assert (item.status, item.detail.startswith(f"float32, machine 1: rank 1: weights {weights} bytes")) == (
        "PASS",
        True,
    )
    assert f"KV cache {40 * block} bytes (0.00 GiB) (40 blocks" in item.detail
    total = weights + figure(item.detail, "activations") + RUNTIME_BYTES + 40 * block
    assert item.detail.endswith(f"= {total} bytes (0.50 GiB) of {4 * GIB} bytes (4.00 GiB)")
    # On one machine two ranks share them.
    assert "(20 blocks" in check(model, 0, 4 * GIB, kv_cache_bytes=40 * block, nnodes=1).detail


def test_each_machine_plans_the_stage_that_is_on_it(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    last = 2 * EMBEDDING + 16 + LAYER  # the table, its packed copy, and the norm
    for node, weights in enumerate([4 * (EMBEDDING + LAYER), 4 * last]):
        item = check(model, node, 4 * GIB, ranks=(2, 2), kv_cache_bytes=40 * 2 * LAYER_BLOCK)
        said = f"float32, machine {node}: each of ranks {2 * node} to {2 * node + 1}: weights {weights} bytes"
        assert (item.status, item.detail.startswith(said)) == ("PASS", True)
        assert f"KV cache {40 * LAYER_BLOCK} bytes (0.00 GiB) (40 blocks" in item.detail
        runtime = RUNTIME_BYTES + RANK_RUNTIME_BYTES
        assert f", times 2 + runtime {runtime} bytes (0.75 GiB) = " in item.detail


def test_the_first_stage_alone_has_a_draft_model(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    drafting = {"speculative": SpeculativeConfig(method="draft", draft_model=str(model))}
    plain, drafts = (
        [check(model, node, 4 * GIB, ranks=(1, 2), kv_cache_bytes=60 * LAYER_BLOCK, **flags) for node in range(2)]
        for flags in ({}, drafting)
    )
    assert drafts[1].detail == plain[1].detail
    whole = check(model, 0, 4 * GIB, ranks=(1, 1), nnodes=1)
    assert figure(drafts[0].detail, "+ draft model") == figure(whole.detail, "weights")
    assert "(30 blocks" in plain[0].detail
    assert "(10 blocks" in drafts[0].detail  # of three layers
    both = check(model, 0, 4 * GIB, ranks=(1, 2), kv_cache_bytes=60 * LAYER_BLOCK, nnodes=1, **drafting)
    assert figure(both.detail, "+ draft model") == figure(drafts[0].detail, "+ draft model")


@pytest.mark.parametrize(("nnodes", "node"), [(1, 0), (2, 0), (2, 1)])
def test_the_cache_that_is_named_for_stages_of_unlike_size_passes(tmp_path: Path, nnodes: int, node: int) -> None:
    model = make_model(tmp_path, num_hidden_layers=3)

    def with_cache(size: int, limit: int) -> CheckItem:
        return check(model, node, limit, ranks=(1, 2), kv_cache_bytes=size, max_num_seqs=32768, nnodes=nnodes)

    roomy = with_cache(GIB, 64 * GIB)
    assert roomy.status == "PASS"
    limit = int(roomy.detail.rpartition(" = ")[2].split()[0]) - GIB // 4
    item = with_cache(GIB, limit)
    assert item.status == "FAILED"
    fitting = figure(item.detail, "--kv_cache_bytes")
    assert with_cache(fitting, limit).status == "PASS"
    assert with_cache(fitting + 8 * LAYER_BLOCK * 3, limit).status == "WARNING"


def test_no_machine_plans_more_than_its_bytes_for_stages_of_unlike_size(tmp_path: Path) -> None:
    """Of two layers and of one."""
    model, bytes_of_cache = make_model(tmp_path, num_hidden_layers=3), 120 * LAYER_BLOCK
    for node, blocks in enumerate([30, 60]):  # a block of one rank has the heads of both
        item = check(model, node, 4 * GIB, ranks=(1, 2), kv_cache_bytes=bytes_of_cache)
        assert f"KV cache {bytes_of_cache} bytes (0.00 GiB) ({blocks} blocks" in item.detail


def test_as_many_gpus_are_looked_for_as_this_machine_has_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = [(3 * GIB, 8 * GIB), (GIB, 4 * GIB)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(memory))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: memory[index])
    model = make_model(tmp_path)
    item = check(model, 1, ranks=(2, 2))
    assert (item.status, item.detail.startswith("float32, machine 1: each of ranks 2 to 3: weights")) == ("PASS", True)
    assert f"{GIB} bytes (1.00 GiB) free)" in item.detail
    item = check(model, 0, ranks=(2, 2), nnodes=1)
    assert (item.status, item.detail.partition(";")[0]) == ("FAILED", "4 ranks need as many GPUs, 2 are visible")
    item = check(model, 0, ranks=(1, 2), gpu=Gpu(GIB, GIB))
    assert figure(item.detail, "machine 0: rank 0: weights") == figure(
        check(model, 0, ranks=(1, 2), limit=4 * GIB).detail, "weights"
    )


def test_the_program_plans_for_one_machine_and_meets_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--items", "memoryFit,model", "--model", str(make_model(tmp_path)), "--max_num_seqs", "4", "-tp", "2"]
    assert main([*arguments, "--nnodes", "2", "--node_rank", "1"]) == 0
    printed = capsys.readouterr().out
    assert "machine 1: rank 1: weights" in printed
    assert [line.split()[0] for line in printed.splitlines()[:2]] == ["check_memory_fit", "check_model"]
    assert main([*arguments, "--nnodes", "2", "--node_rank", "1", "--enable_lora=true"]) == 0
    assert "adapters" in capsys.readouterr().out
