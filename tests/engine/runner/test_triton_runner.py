"""A whole model, from the gather of inputs to the sampling, on Triton kernels: the tokens of the torch operators."""

from __future__ import annotations

from pathlib import Path

import engine_support.triton_interpreter as triton_interpreter
import pytest
import torch
from engine_support.runner_driver import GREEDY, Driver
from engine_support.tiny_models import engine_config, save_model

from blade_llm.kernels.paged_attention import warm as warm_attention
from blade_llm.kernels.warm import warm_layers, warm_step
from blade_llm.runner import build_runner
from blade_llm.runner.kv_cache import rows_of
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams

pytestmark = pytest.mark.skipif(triton_interpreter.COMPILED, reason="compares with torch operators on the CPU")

KINDS = [
    GREEDY,
    SamplingParams(temperature=0.8, seed=3, max_tokens=50),
    SamplingParams(temperature=1.3, seed=4, top_k=20, top_p=0.9, min_p=0.01, max_tokens=50),
    SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.4, min_tokens=3, max_tokens=50),
    SamplingParams(temperature=1.0, seed=5, presence_penalty=1.0, top_p=0.5, logprobs=2, max_tokens=50),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2")
    save_model(folder, "qwen2", num_hidden_layers=2)
    return folder


def generate(driver: Driver, steps: int = 4) -> dict[int, list[int]]:
    """Requests of all kinds: prefilled in chunks while others decode, then decoded together."""
    generator = torch.Generator().manual_seed(8)
    lengths = {slot: 3 + 11 * slot for slot in range(len(KINDS))}
    for slot, length in lengths.items():
        prompt = torch.randint(2, 199, (length,), generator=generator).tolist()
        driver.enter(slot, prompt, KINDS[slot], masked=(1, 7))
    driver.step({0: 3, 1: 14, 4: 20})
    driver.step({0: 1, 1: 1, 2: 25, 3: 36, 4: 27})
    driver.decode(list(lengths), steps)
    return {slot: request.tokens[lengths[slot] :] for slot, request in driver.live.items()}


def warm(runner: TorchRunner) -> None:
    model, tables, (k_cache, v_cache) = runner.model_config, runner.tables, runner._kv_cache[0]
    rows = rows_of(model.kv, runner.dtype)
    warm_layers(
        runner.dtype,
        k_cache,
        hidden=model.hidden_size,
        inner=[model.decoder.layers[0].mlp.inner],
        num_heads=model.num_heads,
        rows=rows,
        v_cache=v_cache,
    )
    logits = torch.zeros(1, model.vocab_size, dtype=runner.dtype)
    warm_step(tables.token_ids, tables.block_table, k_cache.shape[1], logits)
    warm_attention(k_cache, tables.block_table, model.num_heads, v_cache=v_cache, rows=rows)


@pytest.mark.parametrize(
    "kv_cache_quant", ["no_quant", "int8", "int4_affine", pytest.param("mix_i8i4", marks=pytest.mark.soak)]
)
def test_same_tokens_as_torch_operators_and_nothing_to_compile_in_service(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kv_cache_quant: str
) -> None:
    runner = build_runner(engine_config(folder, kv_cache_quant=kv_cache_quant))
    expected = generate(Driver(runner))
    triton_interpreter.use_triton(monkeypatch)
    variants = triton_interpreter.record_launches(monkeypatch)
    warm(runner)
    warmed = set(variants)
    variants.clear()
    assert generate(Driver(runner)) == expected
    assert len({variant[0] for variant in variants}) >= 9, "not all operators ran on their kernels"
    assert variants <= warmed
