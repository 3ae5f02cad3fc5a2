"""What the one call for all layers takes beside Llama's layers, against the operators one by one: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from engine_support.native_isa import ISAS, limited_to, needs_native

from blade_llm.kernels import native as native_library
from blade_llm.kernels.activate import activate
from blade_llm.kernels.backend import torch_only
from blade_llm.kernels.decoder_layers import fuse, serves
from blade_llm.kernels.decoder_layers.weights import LayerWeights, NormKind
from blade_llm.kernels.layer_norm import add_layer_norm, layer_norm
from blade_llm.kernels.linear import pack
from blade_llm.kernels.linear.packed import PackedLinear
from blade_llm.kernels.paged_attention import PLAIN, AttentionVariant, RaggedBatch, paged_attention, prepare
from blade_llm.kernels.rms_norm import add_rms_norm, rms_norm
from blade_llm.kernels.rope_write_kv import rope_write_kv
from blade_llm.spec.mlp import Activation

pytestmark = [needs_native, pytest.mark.skipif(torch_only(), reason="the environment keeps operators on torch")]
BUILT_FOR = [isa for isa in ISAS if native_library.ISA_NAMES.index(isa) >= native_library.ISA_NAMES.index("avx2")]
HIDDEN, HEADS, KV_HEADS, DIM, INNER, EPS, BLOCK = 64, 4, 2, 32, 96, 1e-5, 16
KVCache = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Form:
    """Layers that differ from Llama's."""

    norm: NormKind = "rms"
    activation: Activation = "silu"
    gated: bool = True
    qk_norm: bool = False
    scale: float = 0.2
    windows: tuple[int, int] = (0, 0)
    variant: AttentionVariant = PLAIN


FORMS = {
    "qwen3": Form(qk_norm=True),
    "gemma2": Form("rms_unit_offset", "gelu_tanh", windows=(0, 9), variant=AttentionVariant(softcap=2.0), scale=0.1),
    "gemma3": Form("rms_unit_offset", "gelu_tanh", qk_norm=True, windows=(9, 0)),
    "opt": Form("layer", "relu", gated=False),
    "bloom": Form("layer", "gelu", gated=False, variant=AttentionVariant(slopes=torch.linspace(0.5, 0.1, HEADS))),
    "nemotron": Form("layer", "relu2", gated=False),
    "gpt-oss": Form(windows=(9, 0), variant=AttentionVariant(sinks=torch.linspace(-1.0, 1.0, HEADS))),
}


@pytest.fixture(params=BUILT_FOR)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with limited_to(request.param):
        yield request.param


def layers_of(form: Form) -> list[LayerWeights]:
    generator = torch.Generator().manual_seed(5)

    def linear(outputs: int, inputs: int, bias: bool) -> PackedLinear | None:
        weight = (torch.randn(outputs, inputs, generator=generator) * inputs**-0.5).bfloat16()
        return pack(weight, torch.randn(outputs, generator=generator).bfloat16() if bias else None, "none")

    def vector(size: int) -> torch.Tensor:
        return (torch.rand(size, generator=generator) + 0.5).bfloat16()

    layer_norms = form.norm == "layer"
    return [
        LayerWeights(
            vector(HIDDEN),
            linear((HEADS + 2 * KV_HEADS) * DIM, HIDDEN, bias=True),
            linear(HIDDEN, HEADS * DIM, bias=layer_norms),
            vector(HIDDEN),
            linear((2 if form.gated else 1) * INNER, HIDDEN, bias=layer_norms),
            linear(HIDDEN, INNER, bias=layer_norms),
            q_norm=vector(DIM) if form.qk_norm else None,
            k_norm=vector(DIM) if form.qk_norm else None,
            window=window,
            variant=form.variant,
            input_norm_bias=vector(HIDDEN) if layer_norms else None,
            post_attention_norm_bias=vector(HIDDEN) if layer_norms else None,
        )
        for window in form.windows
    ]


def one_by_one(
    form: Form,
    layers: list[LayerWeights],
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    step: object,
    cache: KVCache,
) -> tuple[torch.Tensor, torch.Tensor]:
    unit = form.norm == "rms_unit_offset"
    residual: torch.Tensor | None = None

    def add(
        x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if form.norm == "layer":
            if residual is None:
                return layer_norm(x, weight, bias, EPS), x
            return add_layer_norm(x, residual, weight, bias, EPS)
        if residual is None:
            return rms_norm(x, weight, EPS, unit_offset=unit), x
        return add_rms_norm(x, residual, weight, EPS, unit_offset=unit)

    for layer, (keys, values) in zip(layers, cache, strict=True):
        assert layer.qkv is not None
        assert layer.output is not None
        assert layer.gate_up is not None
        assert layer.down is not None
        normed, residual = add(x, residual, layer.input_norm, layer.input_norm_bias)
        q = rope_write_kv(
            layer.qkv(normed), cos, sin, slots, keys, values, HEADS, layer.q_norm, layer.k_norm, EPS, unit_offset=unit
        )
        attended = paged_attention(q, keys, values, step, form.scale, layer.window, layer.variant)
        normed, residual = add(
            layer.output(attended), residual, layer.post_attention_norm, layer.post_attention_norm_bias
        )
        x = layer.down(activate(layer.gate_up(normed), form.activation, gated=form.gated))
    assert residual is not None
    return x, residual


@pytest.mark.parametrize("name", FORMS)
def test_the_bits_are_those_of_the_operators(name: str, isa: str) -> None:
    """A prefill beside a chunk and a decode."""
    form = FORMS[name]
    layers = layers_of(form)
    fused = fuse(
        layers,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        inner=INNER,
        eps=EPS,
        scale=form.scale,
        norm=form.norm,
        activation=form.activation,
        gated=form.gated,
    )
    assert fused is not None
    counts, lengths = [1, 20, 7], [40, 20, 30]
    generator = torch.Generator().manual_seed(7)
    shape = (9, BLOCK, KV_HEADS, DIM)
    cache = [tuple(torch.randn(shape, generator=generator).bfloat16() for _ in range(2)) for _ in layers]
    table = torch.arange(9, dtype=torch.int32).view(3, 3)
    batch = RaggedBatch.of(torch.arange(3), counts, lengths)
    positions = torch.cat([torch.arange(end - count, end) for count, end in zip(counts, lengths, strict=True)])
    slots = positions + 3 * BLOCK * torch.arange(3).repeat_interleave(torch.tensor(counts))
    angles = torch.outer(positions.float(), torch.rand(DIM // 2, generator=generator))
    x = torch.randn(len(positions), HIDDEN, generator=generator).bfloat16()
    results = []
    for call in ("together", "apart"):
        own: KVCache = [(keys.clone(), values.clone()) for keys, values in cache]
        step = prepare(batch, table, own[0][0], HEADS)
        if call == "together":
            result = fused(x.clone(), angles.cos(), angles.sin(), slots, step, own, layers=len(layers))
        else:
            result = one_by_one(form, layers, x.clone(), angles.cos(), angles.sin(), slots, step, own)
        results.append([*result, *(tensor for pair in own for tensor in pair)])
    for together, apart in zip(*results, strict=True):
        assert not together.isnan().any()
        assert torch.equal(together, apart)


def test_what_is_not_served() -> None:
    layers = layers_of(Form(qk_norm=True))
    assert serves(layers, DIM)
    assert not serves([], DIM)
    assert not serves([replace(layers[0], input_norm=layers[0].input_norm.float())], DIM)
    assert not serves([replace(layers[0], down=None)], DIM)
    assert not serves([replace(layers[0], q_norm=torch.ones(HEADS * DIM).bfloat16())], DIM)
    assert not serves(layers, 2048)
    assert not serves([replace(layers[0], q_norm=None, k_norm=None)], 33)
