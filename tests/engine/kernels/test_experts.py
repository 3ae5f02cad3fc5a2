"""Grouped experts against plain arithmetic, on every instruction set the CPU has and without the library."""

from __future__ import annotations

import pytest
import torch
from engine_support.moe_cases import elsewhere_left_out, plain, random_experts, random_ids, relative_error
from torch import Tensor

from blade_llm.kernels.experts import native as native_experts
from blade_llm.kernels.experts import pack
from blade_llm.kernels.experts.packed import Part
from blade_llm.kernels.experts.torch import TorchExperts
from blade_llm.kernels.linear.packed import Quantization

QUANTS: list[Quantization] = ["none", "int8", "int4"]
QUANTISED = pytest.mark.parametrize("quant", QUANTS)
SHAPES = [(8, 64, 32, 2), (5, 70, 45, 5), (16, 96, 160, 4), (1, 32, 32, 1)]
"""Experts, hidden, inner, experts of a token; some sizes are no multiples of the tile."""
TOKENS = [1, 2, 5, 17, 70]
BOUND = 1.2e-2
"""bf16 rounds by 2**-9: the results of both products, and quantised weights where kernels make bf16 of them."""


def inputs(tokens: int, hidden: int, seed: int = 0) -> Tensor:
    return torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(seed)).bfloat16()


@QUANTISED
@pytest.mark.parametrize(("experts", "hidden", "inner", "top_k"), SHAPES)
def test_equals_plain_products(
    path: str, quant: Quantization, experts: int, hidden: int, inner: int, top_k: int
) -> None:
    weights = random_experts(experts, hidden, inner)
    packed = pack(iter(weights), quant)
    assert (type(packed).__module__ == native_experts.__name__) == (path != "torch")
    for tokens in TOKENS:
        x = inputs(tokens, hidden)
        ids, scales = random_ids(tokens, experts, top_k, seed=tokens)
        y = packed(x, ids, scales)
        assert y.dtype == x.dtype
        assert relative_error(y, plain(x, weights, ids, scales, quant)) < BOUND, tokens


@QUANTISED
@pytest.mark.parametrize("chosen", [[3, 3, 3], [0, 7, 0], [7]], ids=["one", "first-and-last", "token"])
def test_experts_without_tokens_are_not_even_read(path: str, quant: Quantization, chosen: list[int]) -> None:
    """Theirs are no numbers here."""
    weights = random_experts(8, 64, 32)
    for expert in set(range(8)) - set(chosen):
        weights[expert] = (torch.full((64, 64), float("nan")).bfloat16(), torch.full((64, 32), float("nan")).bfloat16())
    ids = torch.tensor(chosen, dtype=torch.int32)[:, None]
    x, scales = inputs(len(chosen), 64), torch.ones(len(chosen), 1)
    y = pack(weights, quant)(x, ids, scales)
    assert relative_error(y, plain(x, weights, ids, scales, quant)) < BOUND


@QUANTISED
def test_all_tokens_to_one_expert(path: str, quant: Quantization) -> None:
    weights = random_experts(4, 64, 96)
    x, ids, scales = inputs(200, 64), torch.full((200, 1), 2, dtype=torch.int32), torch.rand(200, 1)
    y = pack(weights, quant)(x, ids, scales)
    assert relative_error(y, plain(x, weights, ids, scales, quant)) < BOUND


@QUANTISED
@pytest.mark.parametrize("here", [range(3), range(3, 7), range(7, 8)], ids=str)
def test_a_part_of_the_experts_adds_up_what_is_theirs(path: str, quant: Quantization, here: range) -> None:
    """Of a token that has none of them it is 0, and nothing that it has elsewhere comes in."""
    weights = random_experts(8, 64, 45)
    packed = pack((weights[expert] for expert in here), quant, part=Part(here.start, 8))
    for tokens in TOKENS:
        x, (ids, scales) = inputs(tokens, 64), random_ids(tokens, 8, 2, seed=tokens)
        ids[0] = torch.tensor([(here.stop + place) % 8 if len(here) < 4 else 2 * place for place in range(2)])
        y = packed(x, ids, scales)
        assert torch.equal(y[0], torch.zeros_like(y[0]))
        expected = plain(x, weights, ids, elsewhere_left_out(ids, scales, here), quant)
        assert relative_error(y, expected) < BOUND or not expected.any(), tokens


def test_parts_of_the_experts_together_are_all(path: str) -> None:
    weights, x, (ids, scales) = random_experts(6, 64, 32, torch.float32), inputs(90, 64).float(), random_ids(90, 6, 3)
    parts = [range(1), range(1, 4), range(4, 6)]
    sums = [pack([weights[e] for e in part], part=Part(part.start, 6))(x, ids, scales) for part in parts]
    torch.testing.assert_close(sum(sums), pack(weights)(x, ids, scales), atol=1e-6, rtol=1e-5)


def test_a_token_without_numbers_spoils_no_other_in_a_part(path: str) -> None:
    weights, x, (ids, scales) = random_experts(6, 64, 32), inputs(40, 64), random_ids(40, 6, 2)
    packed = pack(weights[2:4], part=Part(2, 6))
    expected = packed(x, ids, scales)
    x[7], scales[9] = float("nan"), float("nan")
    y = packed(x, ids, scales)
    others = [token for token in range(40) if token not in (7, 9)]
    assert torch.equal(y[others], expected[others])


def test_no_tokens(path: str) -> None:
    packed = pack(random_experts(4, 64, 32))
    nothing = torch.empty(0, 2, dtype=torch.int32)
    assert packed(inputs(0, 64), nothing, nothing.float()).shape == (0, 64)


def test_more_tokens_than_are_computed_at_a_time(path: str) -> None:
    """Each piece must find its own rows, ids and weights."""
    tokens = native_experts.CHUNK * 2 + 3
    weights, x = random_experts(6, 32, 32), inputs(tokens, 32)
    ids, scales = random_ids(tokens, 6, 2)
    packed = pack(weights, deterministic=True)
    parts = [packed(x[i : i + 500], ids[i : i + 500], scales[i : i + 500]) for i in range(0, tokens, 500)]
    assert torch.equal(packed(x, ids, scales), torch.cat(parts))


@QUANTISED
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_deterministic_tokens_do_not_depend_on_the_batch(path: str, quant: Quantization, dtype: torch.dtype) -> None:
    packed = pack(random_experts(8, 96, 72, dtype), quant, deterministic=True)
    x, (ids, scales) = inputs(150, 96).to(dtype), random_ids(150, 8, 3)
    whole = packed(x, ids, scales)
    for tokens in (1, 2, 7, 40):
        assert torch.equal(packed(x[:tokens], ids[:tokens], scales[:tokens]), whole[:tokens])
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    assert torch.equal(packed(x[order], ids[order], scales[order]), whole[order])


@QUANTISED
def test_threads_change_nothing(path: str, quant: Quantization) -> None:
    """However the panels of all experts are divided, each is computed once: few tokens, many, and on few experts."""
    if path == "torch":
        pytest.skip("torch's products are its own")
    packed = pack(random_experts(12, 512, 320), quant)
    threads = torch.get_num_threads()
    try:
        for tokens, experts in ((1, 12), (3, 12), (60, 12), (40, 2)):
            x, (ids, scales) = inputs(tokens, 512), random_ids(tokens, experts, 2)
            results = []
            for count in (1, 2, 3, 7):
                torch.set_num_threads(count)
                results.append(packed(x, ids, scales))
            assert all(torch.equal(result, results[0]) for result in results)
    finally:
        torch.set_num_threads(threads)


def test_fp32_is_as_exact_as_torch() -> None:
    weights = random_experts(6, 50, 70, torch.float32)
    x, (ids, scales) = inputs(30, 50).float(), random_ids(30, 6, 2)
    packed = pack(weights)
    assert isinstance(packed, TorchExperts)
    torch.testing.assert_close(packed(x, ids, scales), plain(x, weights, ids, scales), atol=1e-6, rtol=1e-5)


def test_a_token_that_is_not_finite_spoils_no_other(path: str) -> None:
    packed = pack(random_experts(4, 64, 32))
    x, (ids, scales) = inputs(20, 64), random_ids(20, 4, 2)
    expected = packed(x, ids, scales)
    x[3], x[9, 5], scales[12, 1] = float("nan"), float("inf"), float("nan")
    y = packed(x, ids, scales)
    others = [token for token in range(20) if token not in (3, 9, 12)]
    assert y[3].isnan().all()
    assert y[12].isnan().all()
    assert torch.equal(y[others], expected[others])


def test_takes_rows_of_a_larger_matrix(path: str) -> None:
    packed, wide = pack(random_experts(4, 64, 32)), inputs(12, 200)
    ids, scales = random_ids(12, 4, 2)
    for x in (wide[:, 40:104], wide[:, ::2][:, :64]):
        assert torch.equal(packed(x, ids, scales), packed(x.contiguous(), ids, scales))


def test_counts_its_bytes(path: str) -> None:
    weights = random_experts(3, 64, 32)
    plain_bytes = sum(gate_up.nbytes + down.nbytes for gate_up, down in weights)
    assert pack(weights).nbytes == plain_bytes
    assert pack(weights, "int4").nbytes == plain_bytes * 18 // 64
    assert pack(weights, "int8").nbytes == plain_bytes // 2 + 3 * (64 + 64) * 4


def test_wrong_weights_and_inputs_are_refused() -> None:
    good = random_experts(2, 64, 32)
    with pytest.raises(ValueError, match="at least one expert"):
        pack([])
    with pytest.raises(ValueError, match=r"expected gate_up \[2 \* inner, hidden\]"):
        pack([(good[0][0], good[0][1].T)])
    with pytest.raises(ValueError, match="expert 1 has another shape"):
        pack([good[0], random_experts(1, 64, 48)[0]])
    packed = pack(good)
    if not isinstance(packed, native_experts.NativeExperts):
        pytest.skip("no native experts here")
    ids, scales = torch.tensor([[0], [2]], dtype=torch.int32), torch.ones(2, 1)
    with pytest.raises(ValueError, match="expert ids must be 0 to 1"):
        packed(inputs(2, 64), ids, scales)
    with pytest.raises(ValueError, match=r"expected \[tokens, 64\] bf16, got \[2, 32\]"):
        packed(inputs(2, 32), ids, scales)
