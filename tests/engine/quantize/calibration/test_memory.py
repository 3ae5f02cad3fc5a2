"""What calibration holds in memory: never a whole embedding or output matrix, and for GPTQ two matrices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_support.calibrated import save_with_tokenizer
from engine_support.layer_inputs import normal
from engine_support.live_tensors import most_alive

from blade_llm.models.implementation import read_model_config
from blade_llm.quantization.gptq import GptqOptions, gptq
from blade_llm.quantization.grid import Grid
from blade_llm.quantization.hessian import Hessian, HessianAccumulator
from blade_llm.quantization.inverse_factor import inverse_factor
from blade_llm.quantize.calibration import forward
from blade_llm.quantize.calibration.layerwise import Layerwise
from blade_llm.quantize.calibration.samples import Samples
from blade_llm.quantize.calibration.states import States
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.plan import make_plan
from blade_llm.quantize.source import TensorReader

VOCABULARY = 1 << 15
SIZES = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": VOCABULARY, "max_position_embeddings": 256}


@pytest.mark.parametrize("tied", [True, False])
def test_a_large_vocabulary_is_never_in_memory(tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_BLOCK_ROWS", 512)
    monkeypatch.setattr(forward, "_LOGIT_TOKENS", 16)
    save_with_tokenizer(tmp_path, "llama", tie_word_embeddings=tied, **SIZES)
    config, reader = read_model_config(tmp_path), TensorReader(tmp_path)
    options = QuantizeOptions(algorithm="gptq", bits=4, group_size=32)
    plan = make_plan(config, reader.checkpoint.tensors, options, "lm_head")
    torch.manual_seed(0)
    samples = Samples(tuple(torch.randint(3, VOCABULARY, (40,)) for _ in range(4)), 0, ())
    layerwise = Layerwise(config, reader, samples, options, plan.modules)
    table = 2 * VOCABULARY * 64  # in bf16; logits of one sample take more
    assert most_alive(layerwise.model.embedded) < table / 2
    embedded = layerwise.model.embedded()
    states = States(torch.cat((embedded, embedded[layerwise.judging])), len(embedded))
    assert most_alive(lambda: layerwise.perplexity(states)) < table / 2


def test_gptq_holds_two_matrices_of_inputs_by_inputs() -> None:
    inputs = 2048
    matrix = 4 * inputs**2
    accumulator = HessianAccumulator(inputs)  # made before: it is not counted
    accumulator.add(normal(100, inputs))
    assert most_alive(lambda: accumulator.finish()) > 2.5 * matrix  # the sum stays beside its mean
    assert most_alive(lambda: accumulator.finish(last=True)) < 2.5 * matrix  # with half a matrix of buffered tokens

    hessian = Hessian.of(normal(100, inputs))
    order = torch.randperm(inputs)
    assert most_alive(lambda: inverse_factor(hessian, 0.01, order)) < 2.9 * matrix  # with the Hessian

    how = GptqOptions(act_order=True, static_groups=True)
    grid = Grid(4, 64, True, torch.bfloat16)
    weight = torch.randn(64, inputs)
    assert most_alive(lambda: gptq(weight, hessian, grid, how)) < 2.9 * matrix
