"""The model of a step's cost on several GPUs: its parts by hand, its bounds against what others measured, and that
docs/parallel.md has no other figures than it prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.engine.parallel_cost.__main__ import main
from benchmarks.engine.parallel_cost.collectives import all_gather, nccl_all_reduce, own_all_reduce, send
from benchmarks.engine.parallel_cost.hardware import H100, Measured, Network
from benchmarks.engine.parallel_cost.published import ALL_REDUCES, VLLM, Point
from benchmarks.engine.parallel_cost.step import Setting, decode, prefill, stage_cost
from benchmarks.engine.parallel_cost.work import rank_work

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.parallel.layout import RankLayout

DOCS = Path(__file__).parents[3] / "docs" / "parallel.md"
NETWORK = Network()
EXACT = Measured(bandwidth_share=1.0, flops_share=1.0, layer_gap=0.0, host_64=0.0)
LLAMA = Setting("Llama-3.1-70B", RankLayout(8), H100, measured=EXACT)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen2.5-32B", 32.76), ("Llama-3.1-70B", 70.55), ("Llama-3.1-405B", 405.85), ("DeepSeek-V3", 671.03)],
)
def test_models_have_the_weights_that_they_are_published_with(name: str, billions: float) -> None:
    assert rank_work(name, 1).total / 1e9 == pytest.approx(billions, abs=0.01)


def test_a_token_is_multiplied_with_the_experts_that_it_chose() -> None:
    work = rank_work("DeepSeek-V3", 1)
    assert work.per_token / 1e9 == pytest.approx(35.5, abs=0.1)
    assert work.read(1) == work.per_token
    assert work.per_token < work.read(32) < work.read(10_000) == pytest.approx(work.matrices)


def test_ranks_divide_matrices_and_heads_but_no_latent_cache() -> None:
    assert rank_work("Llama-3.1-70B", 8).matrices * 8 == rank_work("Llama-3.1-70B", 1).matrices
    assert rank_work("Llama-3.1-70B", 8).kv * 8 == rank_work("Llama-3.1-70B", 1).kv
    assert rank_work("Llama-3.1-70B", 16).kv == rank_work("Llama-3.1-70B", 8).kv  # eight heads, copied
    assert rank_work("DeepSeek-V3", 16).kv == rank_work("DeepSeek-V3", 1).kv
    with pytest.raises(UnsupportedModelError, match="40 attention heads"):
        rank_work("Qwen2.5-32B", 16)


def test_collectives_by_hand() -> None:
    assert nccl_all_reduce(1e6, 1, H100, NETWORK) == own_all_reduce(1e6, 1, H100) == 0
    # The ring's protocol LL: 14 hops within the machine, and next to no bytes.
    assert nccl_all_reduce(8, 8, H100, NETWORK) == pytest.approx(6.6e-6 + 14 * 0.6e-6, rel=1e-3)
    # The tree's, over two machines: 7 hops within one and one between them, there and back.
    assert nccl_all_reduce(8, 16, H100, NETWORK, 2) == pytest.approx(6.8e-6 + 2 * (7 * 0.6e-6 + 5e-6), rel=1e-3)
    # Large ones by bandwidth: the ring's 2 (n - 1) / n over the network of one card.
    seconds = nccl_all_reduce(1e10, 16, H100, Network(nics=1), 2)
    assert seconds == pytest.approx(1e10 * 30 / 16 / 50e9, rel=0.02)
    assert all_gather(8, 8, H100, NETWORK) < nccl_all_reduce(8, 8, H100, NETWORK)
    assert send(50e6, NETWORK) == pytest.approx(1e-3 + 14e-6)
    assert send(50e6, Network(nics=1)) == pytest.approx(8e-3 + 14e-6)


@pytest.mark.parametrize("point", ALL_REDUCES, ids=lambda point: point.what)
def test_all_reduces_are_near_to_those_that_were_measured(point: Point) -> None:
    assert 0.65 < point.model() / point.published < 1.35


@pytest.mark.parametrize("point", VLLM, ids=lambda point: point.what)
def test_the_model_is_a_bound_within_a_factor_of_three_of_what_vllm_was_measured_at(point: Point) -> None:
    times = point.model() / point.published
    faster = times if point.unit == "requests/s" else 1 / times
    assert 1 < faster < 3


def test_a_decode_reads_weights_and_cache_once() -> None:
    cost = decode(LLAMA, 32, 1000).cost
    work = rank_work("Llama-3.1-70B", 8)
    assert cost.weights == pytest.approx(work.matrices * 2 / H100.bandwidth)
    assert cost.kv == pytest.approx(32 * 1000 * work.kv * 2 / H100.bandwidth)
    assert cost.device == pytest.approx(cost.weights + cost.kv + cost.collectives)
    assert cost.bound == "weights"
    assert decode(replace(LLAMA, own_kernels=True), 32, 1000).cost.collectives < cost.collectives


def test_the_host_bounds_a_step_that_is_shorter() -> None:
    slow = replace(LLAMA, measured=replace(EXACT, host_64=1.0))
    assert decode(slow, 1, 1000).tpot == 1.0
    assert decode(slow, 128, 1000).tpot == 2.0
    assert decode(slow, 1, 1000).cost.bound == "host"


def test_bubbles_of_a_pipeline() -> None:
    staged = replace(LLAMA, layout=RankLayout(8, 2, 2), network=Network(hop=0.0, nic=1e30))
    whole = decode(LLAMA, 1, 1000)
    assert decode(staged, 1, 1000).tpot == pytest.approx(whole.tpot)
    assert decode(staged, 1, 1000).bubble == pytest.approx(0.5)
    assert decode(staged, 2, 1000).bubble == pytest.approx(0.0)
    assert decode(staged, 2, 1000).throughput == pytest.approx(2 / whole.tpot)
    assert prefill(staged, 2048).bubble == pytest.approx(0.5)
    assert prefill(staged, 2048).ttft == pytest.approx(prefill(LLAMA, 2048).ttft)
    assert prefill(staged, 8 * 2048).bubble == pytest.approx(1 / 9, abs=0.03)


def test_a_prompt_is_bound_by_its_products() -> None:
    cost = stage_cost(replace(LLAMA, layout=RankLayout(1)), 2048, 1, 2048, 2048 * 2049 / 2)
    work = rank_work("Llama-3.1-70B", 1)
    at_least = 2 * (work.per_token - work.head) * 2048 / H100.flops
    assert at_least < cost.products < 1.1 * at_least
    assert cost.bound == "products"


def test_the_rates_are_those_that_the_repository_measured() -> None:
    measured = Measured.read()
    assert 0.5 < measured.flops_share < 1
    assert 0.5 < measured.bandwidth_share < 1
    assert 0 < measured.layer_gap < 1e-4
    assert 0 < measured.host_64 < 1e-2


def test_docs_have_no_figures_that_the_program_does_not_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out.splitlines()
    section = DOCS.read_text(encoding="utf-8").partition("## What to expect on GPUs")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|") and not line.startswith("|---")]
    assert len(rows) > 20
    assert [row for row in rows if row not in printed] == []
