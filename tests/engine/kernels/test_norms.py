"""Layer norms, norms with an offset of one, and norms of queries and keys, against torch's and transformers' modules
on every backend."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from engine_support.native_isa import ISAS, limited_to, needs_native
from engine_support.triton_interpreter import DEVICE

from blade_llm.kernels import layer_norm as layer_norm_operator
from blade_llm.kernels.layer_norm import native, triton
from blade_llm.kernels.layer_norm import torch as reference
from blade_llm.kernels.rms_norm import rms_norm
from blade_llm.kernels.rms_norm import triton as rms_triton
from blade_llm.kernels.rope_write_kv import rope_write_kv

TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16", "fp16"])


@pytest.fixture(params=["torch", "triton", *(pytest.param(isa, marks=needs_native) for isa in ISAS[:3])])
def module(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    if request.param in ("torch", "triton"):
        yield {"torch": reference, "triton": triton}[request.param]
        return
    with limited_to(request.param):
        yield native


def random(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@DTYPES
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("tokens", "hidden"), [(1, 896), (3, 2), (7, 131), (20, 1030)])
def test_layer_norm(module: ModuleType, tokens: int, hidden: int, with_bias: bool, dtype: torch.dtype) -> None:
    x = random(tokens, hidden, dtype=dtype, seed=0) * 3 + 5
    residual, weight = random(tokens, hidden, dtype=dtype, seed=1), random(hidden, dtype=dtype, seed=2)
    bias = random(hidden, dtype=dtype, seed=3) if with_bias else None

    def expected(y: torch.Tensor) -> torch.Tensor:
        wide = None if bias is None else bias.double()
        return F.layer_norm(y.double(), (hidden,), weight.double(), wide, 1e-5)

    limit = TOLERANCE[dtype]
    normed = module.layer_norm(x, weight, bias, 1e-5)
    assert normed.dtype == dtype
    torch.testing.assert_close(normed.double(), expected(x), atol=limit, rtol=limit)
    total = x + residual
    normed, summed = module.add_layer_norm(x.clone(), residual, weight, bias, 1e-5)
    assert torch.equal(summed, total)
    torch.testing.assert_close(normed.double(), expected(total), atol=limit, rtol=limit)


def test_layer_norm_of_a_view_and_of_nothing(module: ModuleType) -> None:
    weight = torch.rand(32, device=DEVICE)
    assert module.layer_norm(torch.empty(0, 32, device=DEVICE), weight, None, 1e-6).shape == (0, 32)
    if module is not triton:
        x = torch.randn(4, 64)[:, ::2]
        torch.testing.assert_close(
            module.layer_norm(x, weight, weight, 1e-6), F.layer_norm(x, (32,), weight, weight, 1e-6)
        )


def test_the_operator_chooses() -> None:
    x, weight = torch.randn(3, 16), torch.rand(16)
    torch.testing.assert_close(
        layer_norm_operator.layer_norm(x, weight, None, 1e-6), F.layer_norm(x, (16,), weight, None, 1e-6)
    )
    normed, total = layer_norm_operator.add_layer_norm(x.clone(), x, weight, weight, 1e-6)
    torch.testing.assert_close(
        (normed, total), (F.layer_norm(2 * x, (16,), weight, weight, 1e-6), 2 * x), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_offset_is_that_of_gemma(dtype: torch.dtype) -> None:
    """To the last bit in bf16, but for fp32 noise before the one rounding."""
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

    module = Gemma2RMSNorm(96, eps=1e-6)
    module.weight.data = torch.randn(96, generator=torch.Generator().manual_seed(0)).to(dtype)
    x = random(40, 96, dtype=dtype, seed=1)
    with torch.no_grad():
        expected = module(x.cpu())
    for actual in (
        rms_norm(x.cpu(), module.weight.data, 1e-6, unit_offset=True),
        rms_triton.rms_norm(x, module.weight.data.to(DEVICE), 1e-6, True).cpu(),
    ):
        torch.testing.assert_close(actual, expected, atol=2e-6 if dtype == torch.float32 else 8e-3, rtol=8e-3)
        assert (actual != expected).float().mean() < (1.0 if dtype == torch.float32 else 0.01)


def test_norms_of_whole_projections_are_those_of_olmo2() -> None:
    """All queries of a token together, and all keys; values untouched."""
    from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

    norms = [Olmo2RMSNorm(size, eps=1e-3) for size in (4 * 16, 2 * 16)]
    for norm in norms:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    qkv = torch.randn(5, (4 + 2 + 2) * 16)
    with torch.no_grad():
        parts = qkv.split((64, 32, 32), 1)
        expected = torch.cat((norms[0](parts[0]), norms[1](parts[1]), parts[2]), 1).view(5, 8, 16)
    k_cache, v_cache = torch.zeros(1, 8, 2, 16), torch.zeros(1, 8, 2, 16)
    unturned = torch.ones(5, 8)
    weights = [norm.weight.data for norm in norms]
    q = rope_write_kv(qkv, unturned, unturned * 0, torch.arange(5), k_cache, v_cache, 4, *weights, 1e-3)
    torch.testing.assert_close(torch.cat((q, k_cache[0, :5], v_cache[0, :5]), 1), expected)
