"""Activations against the modules of transformers, on every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

import pytest
import torch
from engine_support.native_isa import ISAS, limited_to, needs_native
from engine_support.triton_interpreter import DEVICE
from transformers.activations import ACT2FN

from blade_llm.kernels.activate import activate, native, triton
from blade_llm.kernels.activate import torch as reference
from blade_llm.spec.mlp import Activation

KINDS = get_args(Activation)
IN_TRANSFORMERS = {"gelu_tanh": "gelu_pytorch_tanh"}
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
Run = Callable[[torch.Tensor, Activation, bool], torch.Tensor]


@pytest.fixture(params=["torch", "triton", *(pytest.param(isa, marks=needs_native) for isa in ISAS[:3])])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    if request.param == "triton":
        yield lambda x, kind, gated: triton.activate(x.to(DEVICE), kind, gated).cpu()
    elif request.param == "torch":
        yield lambda x, kind, gated: reference.activate(x, kind, gated)
    else:
        with limited_to(request.param):
            yield lambda x, kind, gated: native.activate(x, kind, gated)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kind", KINDS)
def test_activations(run: Run, kind: Activation, dtype: torch.dtype) -> None:
    """Plain, and as a gate, of widths with and without a rest."""
    generator = torch.Generator().manual_seed(1)
    function = ACT2FN[IN_TRANSFORMERS.get(kind, kind)]
    for tokens, inner in ((1, 896), (3, 1), (5, 131)):
        x, up = (torch.randn(tokens, inner, generator=generator).mul(4).to(dtype) for _ in range(2))
        expected = function(x.double())
        limit = TOLERANCE[dtype]
        plain = run(x.clone(), kind, False)
        assert plain.dtype == dtype
        torch.testing.assert_close(plain.double(), expected, atol=limit, rtol=limit)
        gated = run(torch.cat((x, up), 1), kind, True)
        torch.testing.assert_close(gated.double(), expected * up.double(), atol=2 * limit, rtol=2 * limit)


@pytest.mark.parametrize("kind", KINDS)
def test_extremes(run: Run, kind: Activation) -> None:
    x = torch.tensor([[-1e30, -200.0, -89.0, -5.0, 0.0, 5.0, 89.0, 200.0, 1e9, float("nan")]])
    expected = ACT2FN[IN_TRANSFORMERS.get(kind, kind)](x.double()).float()
    torch.testing.assert_close(run(x.clone(), kind, False), expected, equal_nan=True, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_least_of_gelu_and_silu(run: Run, kind: Activation) -> None:
    """Small results are right in proportion, not only beside ones."""
    x = torch.linspace(-6.0, -0.01, 64).unsqueeze(0)
    expected = ACT2FN[IN_TRANSFORMERS.get(kind, kind)](x.double()).float()
    torch.testing.assert_close(run(x.clone(), kind, False), expected, atol=1e-6, rtol=1e-5)


def test_dispatch_and_refusal() -> None:
    x = torch.randn(3, 8)
    assert activate(x.clone(), "gelu_tanh", gated=True).shape == (3, 4)
    torch.testing.assert_close(activate(x.clone(), "relu2", gated=False), x.relu().square())
    with pytest.raises(ValueError, match="'mish' is not one of silu, gelu"):
        activate(x, "mish", gated=False)  # type: ignore[arg-type]


def test_what_does_not_lie_together_is_left_to_torch() -> None:
    x = torch.randn(4, 32)[:, ::2]
    torch.testing.assert_close(native.activate(x, "gelu", False), torch.nn.functional.gelu(x))
