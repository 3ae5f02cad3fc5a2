"""All layers in one call against the layers one by one: the same bits, in the same places of the cache."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.adapters import targets_of, write_adapter
from engine_support.affine_weights import rounded_weight
from engine_support.families import ROWS, save_row
from engine_support.native_isa import ISAS, limited_to, needs_native
from engine_support.pairwise import in_turn, pairwise
from engine_support.runner_driver import Driver
from engine_support.tiny_models import engine_config, save_model

from blade_llm.kernels import native
from blade_llm.kernels.backend import torch_only
from blade_llm.kernels.decoder_layers.native import MLP_TOKENS
from blade_llm.kernels.experts.native import CHUNK
from blade_llm.kernels.linear import native as native_linear
from blade_llm.lora.reader import AdapterWeights, read_adapter
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner

pytestmark = [needs_native, pytest.mark.skipif(torch_only(), reason="the environment keeps operators on torch")]
BUILT_FOR = [isa for isa in ISAS if native.ISA_NAMES.index(isa) >= native.ISA_NAMES.index("avx2")]


NAMES = ["qwen2", "llama", "qwen3-windows", "phi3-short", "opt", "gemma", "bloom", "qwen3-moe", "qwen3-moe-some"]
LONG = max(MLP_TOKENS, CHUNK // 2) + 40
"""More tokens than an MLP takes at once; two such prompts are more than experts do."""


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Biases and shared embeddings; neither; normalised heads and windows; dimensions that do not rotate;
    layer norms and no gate; norms of 1 + weight and a GELU gate; ALiBi; experts in each layer; an MLP in some."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param in ("qwen2", "llama"):
        save_model(folder, request.param, torch.bfloat16, tie_word_embeddings=request.param == "qwen2")
    else:
        save_row(folder, ROWS[request.param], torch.bfloat16)
    return folder


def runner_of(folder: Path, **overrides: Any) -> TorchRunner:
    return build_runner(engine_config(folder, **{"dtype": "bfloat16"} | overrides))


def steps(runner: TorchRunner, adapter: AdapterWeights | None = None) -> list[torch.Tensor]:
    """Logits of prefills, a prefill in pieces beside decodes, decodes alone; at last the whole cache. ``adapter``: of
    every other request."""
    driver, seen = Driver(runner), []
    if adapter is not None:
        driver.place_adapter(1, adapter)
    generator = torch.Generator().manual_seed(3)
    for slot, length in enumerate((1, 37, 70, 20)):
        driver.adapter = slot % 2 if adapter is not None else 0
        driver.enter(slot, torch.randint(2, 199, (length,), generator=generator).tolist())
    for counts in ({0: 1, 1: 37, 2: 30}, {2: 20, 0: 1, 1: 1}, {2: 5}, {2: 15, 3: 20}, {3: 1, 2: 1, 1: 1, 0: 1}, {1: 1}):
        driver.logits = {}
        driver.step(counts)
        seen += [driver.logits[slot] for slot in sorted(driver.logits)]
    for slot in (4, 5):
        driver.enter(slot, torch.randint(2, 199, (LONG,), generator=generator).tolist())
    driver.step({4: LONG, 0: 1, 5: LONG})
    seen += [driver.logits[slot] for slot in (0, 4, 5)]
    return seen + [cache.clone() for pair in runner._kv_cache for cache in pair]


OPTIONS: list[dict[str, Any]] = [{}, {"quant": "int8"}, {"quant": "int4"}, {"deterministic": True}]


@pytest.mark.parametrize(
    ("folder", "isa", "options"), pairwise(NAMES, BUILT_FOR, OPTIONS), indirect=["folder"], scope="module"
)
def test_the_bits_are_those_of_the_layers_one_by_one(folder: Path, isa: str, options: dict[str, Any]) -> None:
    with limited_to(isa):
        runner = runner_of(folder, **options)
        assert runner.model.fused is not None
        together = steps(runner)
        runner = runner_of(folder, **options)
        runner.model.fused = None
        apart = steps(runner)
    assert len(together) == len(apart)
    for one, other in zip(together, apart, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("folder", "isa"), in_turn(NAMES, BUILT_FOR), indirect=["folder"], scope="module")
def test_affine_weights_with_orders_of_their_own(folder: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As GPTQ checkpoints have them, 4 bits and 8; experts too."""
    bits = count(start=4, step=4)

    def pack_affine(weight: torch.Tensor, bias: torch.Tensor | None, quant: str, deterministic: bool) -> object:
        rounded = rounded_weight(weight, bits=next(bits) % 8 or 8, ordered=True)
        return native_linear.pack_quantized(rounded, bias, deterministic)

    with limited_to(isa):
        plain = steps(runner_of(folder))
        monkeypatch.setattr(native_linear, "pack", pack_affine)
        runner = runner_of(folder)
        assert runner.model.fused is not None
        together = steps(runner)
        bits = count(start=4, step=4)
        runner = runner_of(folder)
        runner.model.fused = None
        apart = steps(runner)
    assert all(map(torch.equal, together, apart))
    assert not all(map(torch.equal, together, plain)), "the weights are not those that were rounded"


@pytest.mark.parametrize("quant", ["none", "int8"])
def test_the_bits_are_the_same_with_adapters(folder: Path, quant: str, tmp_path: Path) -> None:
    """Beside experts too, whose layers take adapters in attention alone."""
    targets = targets_of(folder)
    adapter = read_adapter(write_adapter(tmp_path, targets), targets, max_rank=16, dtype=torch.bfloat16)
    runner = runner_of(folder, quant=quant, enable_lora=True)
    fused, served = runner.model.fused, []
    assert fused is not None
    asked = fused.serves_adapters
    fused.serves_adapters = lambda batch: served.append(asked(batch)) or served[-1]
    together = steps(runner, adapter)
    assert served
    assert all(served) or native.isa() == "amx"
    runner = runner_of(folder, quant=quant, enable_lora=True)
    runner.model.fused = None
    apart = steps(runner, adapter)
    assert all(map(torch.equal, together, apart))
    assert not all(map(torch.equal, together, steps(runner_of(folder, quant=quant)))), "the adapter changes nothing"


def test_layers_that_the_library_has_no_product_for_stay_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runner_of(folder, dtype="float32").model.fused is None
    monkeypatch.setattr(native_linear, "_functions", lambda: None)
    assert runner_of(folder).model.fused is None


def test_a_model_of_one_layer(tmp_path: Path) -> None:
    """Its only layer is also the last, which goes on with the tokens to sample after."""
    save_model(tmp_path, "qwen2", torch.bfloat16, num_hidden_layers=1)
    runner = runner_of(tmp_path)
    together = steps(runner)
    runner = runner_of(tmp_path)
    runner.model.fused = None
    assert all(map(torch.equal, together, steps(runner)))


def test_a_cache_of_another_type_is_refused(folder: Path) -> None:
    runner = runner_of(folder)
    cache = [(keys.float(), values.float()) for keys, values in runner._kv_cache]
    runner._forward_pass = replace(runner._forward_pass, kv_cache=cache)
    with pytest.raises(TypeError, match=r"layers are bfloat16, the KV cache is torch\.float32"):
        steps(runner)
