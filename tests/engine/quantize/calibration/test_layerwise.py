"""Every family computed layer by layer: what transformers computes, before and after its inputs are scaled."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from engine_support.families import ROWS, save_row
from engine_support.tiny_models import reference_logits

from blade_llm.models.implementation import read_model_config
from blade_llm.quantize.calibration.layer import QuantizedLayer
from blade_llm.quantize.calibration.layerwise import Layerwise
from blade_llm.quantize.calibration.samples import Samples
from blade_llm.quantize.calibration.smoothing import Scaled
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.source import TensorReader

LENGTHS = (40, 7, 1, 25)
OWN = [name for name, row in ROWS.items() if row.through == "blade" and name != "phi3-short"]
"""Rotation is that of the longest sequence that the model can have, as of a server without ``--max_model_len``."""


def samples_of(vocab_size: int) -> Samples:
    torch.manual_seed(3)
    return Samples(tuple(torch.randint(3, vocab_size, (length,)) for length in LENGTHS), 0, ())


def layerwise(folder: Path, options: QuantizeOptions | None = None) -> Layerwise:
    config = read_model_config(folder)
    return Layerwise(config, TensorReader(folder), samples_of(config.vocab_size), options or QuantizeOptions(), {})


def states_after(found: Layerwise, changed: list[QuantizedLayer]) -> torch.Tensor:
    """Behind all layers, each with what ``changed`` has in place of the checkpoint's tensors."""
    states = found.model.embedded()
    for index, result in enumerate(changed):
        found.compute_quantized(index, result, states, states, found._all)
    return states


@pytest.mark.parametrize("name", OWN)
def test_it_computes_what_transformers_does_and_scales_change_nothing(name: str, tmp_path: Path) -> None:
    reference = save_row(tmp_path, ROWS[name])
    found = layerwise(tmp_path)
    plain = [QuantizedLayer() for _ in range(found.num_layers)]
    states = states_after(found, plain)
    loss, count = found.model.loss(states, found.samples.judges)
    logits = [reference_logits(reference, ids.tolist())[:-1] for ids in found.samples.token_ids]
    targets = torch.cat([ids[1:] for ids in found.samples.token_ids])
    assert count == len(targets) == sum(LENGTHS) - len(LENGTHS)
    assert math.isclose(loss, float(F.cross_entropy(torch.cat(logits), targets, reduction="sum")), rel_tol=2e-5)

    if name == "gpt2":  # its weights are [in, out], and are refused
        return
    scaled_layers, folded = [], 0
    for index in range(found.num_layers):
        scaled = Scaled(found.weights, found.tensors)
        result = QuantizedLayer()
        places = [place for place in found.tensors.linears if place.startswith(f"layers.{index}.")]
        for group in found.groups(index):
            if group.before is None:
                continue
            inputs = found.tensors.linears[group.places[0]].parts[0].inputs
            scaled.fold(group, torch.exp(torch.randn(inputs)))
            folded += 1
        for place in places:
            for part, weight in zip(found.tensors.linears[place].parts, scaled.weight(place), strict=True):
                result.weights[part.weight.name] = weight
        result.changed = scaled.changed
        scaled_layers.append(result)
    torch.testing.assert_close(states_after(found, scaled_layers), states, rtol=2e-3, atol=2e-4)
    assert folded or name == "olmo2"
