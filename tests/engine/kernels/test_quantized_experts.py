"""Experts whose layers a checkpoint has quantised: products, sizes, and what computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from engine_support.moe_cases import elsewhere_left_out, plain, random_ids, relative_error
from torch import Tensor

from blade_llm.kernels.experts import of_layers
from blade_llm.kernels.experts.native import NativeExperts
from blade_llm.kernels.experts.packed import Part
from blade_llm.kernels.experts.torch import TorchExperts
from blade_llm.kernels.linear import pack, pack_quantized
from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.native import is_available
from blade_llm.kernels.linear.packed import PackedLinear
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.models.quantized.slicing import of_groups

HIDDEN, INNER, EXPERTS = 96, 64, 6
TOKENS = [1, 2, 5, 17, 70]
BOUND = 1.2e-2
Weight = QuantizedWeight | Float8Weight | Tensor
Make = Callable[[int, int, int], Weight]
"""The weight of an expert by its number, outputs and inputs."""


def integers(bits: int, group_size: int, *, zeros: bool = False, ordered: bool = False) -> Make:
    def make(number: int, outputs: int, inputs: int) -> Weight:
        generator = torch.Generator().manual_seed(number * 1000 + outputs)
        groups, most = -(-inputs // group_size), 2**bits - 1
        values = torch.randint(0, most + 1, (outputs, inputs), generator=generator, dtype=torch.uint8)
        scales = (torch.rand(outputs, groups, generator=generator) + 0.5) * (4 / most) * inputs**-0.5
        points = torch.randint(most // 4, most - most // 4, (outputs, groups), generator=generator, dtype=torch.uint8)
        order = torch.randperm(inputs, generator=generator) if ordered else None
        return QuantizedWeight(bits, values, scales.half(), points if zeros else None, group_size, order)

    return make


def floats(number: int, outputs: int, inputs: int) -> Weight:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(number)) * inputs**-0.5
    return Float8Weight((weight * 100).to(torch.float8_e4m3fn), torch.full((outputs, 1), 0.01), (1, inputs))


def untouched(number: int, outputs: int, inputs: int) -> Weight:
    return (torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(number)) * inputs**-0.5).bfloat16()


def mixed(number: int, outputs: int, inputs: int) -> Weight:
    kinds = (integers(4, 32), integers(8, 96, zeros=True), untouched)
    return kinds[number % 3](number, outputs, inputs)


def part_of_order(number: int, outputs: int, inputs: int) -> Weight:
    """Of twice the inputs with act-order, as one of two ranks has it."""
    whole = integers(4, 64, zeros=True)(number, outputs, 2 * inputs)
    assert isinstance(whole, QuantizedWeight)
    group_of = (torch.arange(2 * inputs) // 64)[torch.randperm(2 * inputs, generator=torch.Generator().manual_seed(9))]
    if number == 0:  # its part is one whole group, which nothing fills up
        group_of = group_of.sort().values
    return of_groups(4, whole.integers[:, :inputs], whole.scales, whole.zeros, 64, group_of[:inputs])


FORMS: dict[str, Make] = {
    "int4": integers(4, 32),
    "int4, zero points": integers(4, 64, zeros=True),
    "int4, act-order": integers(4, 32, zeros=True, ordered=True),
    "int8": integers(8, 96),
    "int8, groups": integers(8, 32),
    "3 bits": integers(3, 32, zeros=True),
    "groups of 16": integers(4, 16),
    "fp8": floats,
    "mixed": mixed,
}
NATIVE = {"int4", "int4, zero points", "int4, act-order", "int8", "int8, groups", "3 bits", "mixed", "fp8"}


def made(make: Make, count: int = EXPERTS) -> list[tuple[Weight, Weight]]:
    return [(make(number, 2 * INNER, HIDDEN), make(number, HIDDEN, INNER)) for number in range(count)]


def packed(weight: Weight, dtype: torch.dtype, deterministic: bool = False) -> PackedLinear:
    if isinstance(weight, Tensor):
        found = pack(weight.to(dtype), None, deterministic=deterministic)
        assert found is not None
        return found
    return pack_quantized(weight, None, deterministic=deterministic, dtype=dtype)


def layers(
    weights: list[tuple[Weight, Weight]], dtype: torch.dtype, deterministic: bool = False
) -> list[tuple[PackedLinear, PackedLinear]]:
    return [(packed(up, dtype, deterministic), packed(down, dtype, deterministic)) for up, down in weights]


def numbers(weights: list[tuple[Weight, Weight]]) -> list[tuple[Tensor, Tensor]]:
    def of(weight: Weight) -> Tensor:
        return weight.float() if isinstance(weight, Tensor) else weight.dequantize()

    return [(of(up), of(down)) for up, down in weights]


def inputs(tokens: int, seed: int = 0) -> Tensor:
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("name", FORMS)
def test_products(path: str, name: str) -> None:
    weights = made(FORMS[name])
    experts = of_layers(layers(weights, torch.bfloat16))
    assert isinstance(experts, NativeExperts) == (path != "torch" and name in NATIVE)
    for tokens in TOKENS:
        x, (ids, scales) = inputs(tokens), random_ids(tokens, EXPERTS, 2, seed=tokens)
        y = experts(x, ids, scales)
        assert y.dtype == x.dtype
        assert relative_error(y, plain(x, numbers(weights), ids, scales)) < BOUND, tokens


@pytest.mark.parametrize("activations", [Activations("int8"), Activations("int8", 0.03)], ids=["by token", "static"])
def test_activations_are_rounded_before_each_product(path: str, activations: Activations) -> None:
    """As one expert after the other does with the equations, and not only its weights are rounded."""
    weights = [
        (replace(up, activations=activations), replace(down, activations=activations))
        for up, down in made(FORMS["int8"])
        if isinstance(up, QuantizedWeight) and isinstance(down, QuantizedWeight)
    ]
    experts = of_layers(layers([*weights], torch.bfloat16))
    assert isinstance(experts, NativeExperts) == (path != "torch")
    exact = of_layers(layers([*weights], torch.float32))
    for tokens in TOKENS:
        x, (ids, scales) = inputs(tokens), random_ids(tokens, EXPERTS, 2, seed=tokens)
        y, expected = experts(x, ids, scales), exact(x.float(), ids, scales)
        unrounded = plain(x, numbers([*weights]), ids, scales)
        assert relative_error(y, expected) < min(2 * BOUND, 0.9 * relative_error(y, unrounded)), tokens


@pytest.mark.parametrize("name", FORMS)
def test_fp32_is_exact(name: str) -> None:
    weights = made(FORMS[name])
    experts = of_layers(layers(weights, torch.float32))
    assert isinstance(experts, TorchExperts)
    x, (ids, scales) = inputs(30).float(), random_ids(30, EXPERTS, 2)
    torch.testing.assert_close(experts(x, ids, scales), plain(x, numbers(weights), ids, scales), atol=2e-5, rtol=1e-5)


def test_a_rank_has_a_part_of_each_with_act_order(path: str) -> None:
    """Grouped products take weights of one size: one expert after the other here."""
    weights = made(part_of_order)
    assert len({down.columns for _, down in weights if isinstance(down, QuantizedWeight)}) > 1
    experts = of_layers(layers(weights, torch.bfloat16))
    assert isinstance(experts, TorchExperts)
    x, (ids, scales) = inputs(40), random_ids(40, EXPERTS, 2)
    assert relative_error(experts(x, ids, scales), plain(x, numbers(weights), ids, scales)) < BOUND


def test_a_part_of_the_experts(path: str) -> None:
    here = range(2, 5)
    weights = made(FORMS["int4, zero points"])
    own = [weights[expert] for expert in here]
    experts = of_layers(layers(own, torch.bfloat16), Part(here.start, EXPERTS))
    x, (ids, scales) = inputs(40), random_ids(40, EXPERTS, 2)
    expected = plain(x, numbers(weights), ids, elsewhere_left_out(ids, scales, here))
    assert relative_error(experts(x, ids, scales), expected) < BOUND


@pytest.mark.parametrize("name", ["int4, zero points", "groups of 16", "fp8"])
def test_deterministic_tokens_do_not_depend_on_the_batch(path: str, name: str) -> None:
    experts = of_layers(layers(made(FORMS[name]), torch.bfloat16, deterministic=True))
    x, (ids, scales) = inputs(60), random_ids(60, EXPERTS, 3)
    whole = experts(x, ids, scales)
    for tokens in (1, 2, 7, 40):
        assert torch.equal(experts(x[:tokens], ids[:tokens], scales[:tokens]), whole[:tokens])


def test_they_take_the_bytes_of_their_integers(path: str) -> None:
    """Half a byte or one a weight, and a scale of 2 bytes for each group; kernels fill up to 32 outputs."""
    count = EXPERTS * (2 * INNER * HIDDEN + HIDDEN * INNER)
    for name, weight, groups in (("int4", 0.5, count // 32), ("int8, groups", 1, count // 32)):
        assert of_layers(layers(made(FORMS[name]), torch.bfloat16)).nbytes == count * weight + 2 * groups
    fp8 = of_layers(layers(made(FORMS["fp8"]), torch.bfloat16))
    assert fp8.nbytes == count + 4 * EXPERTS * (2 * INNER + HIDDEN)


def test_experts_of_several_sizes_and_none(path: str) -> None:
    weights = layers(made(FORMS["int4"]), torch.bfloat16)
    assert isinstance(of_layers(weights), NativeExperts) == (path != "torch" and is_available())
    other = packed(integers(4, 32)(0, HIDDEN, 2 * INNER), torch.bfloat16)
    assert NativeExperts.of_layers([*weights[:2], (weights[2][0], other)]) is None
    with pytest.raises(ValueError, match="at least one expert"):
        of_layers([])
