"""Loading a rank's folder keeps no page of its files that the model has taken a copy of."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from engine_support.resident_pages import resident
from safetensors.torch import save_file

from blade_llm.cli.split import main
from blade_llm.models.config import load_model_config
from blade_llm.models.parameters import Parameters
from blade_llm.models.sharding import shard_model
from blade_llm.models.tensors import expected_tensors
from blade_llm.weights.sources import DummyWeights, SafetensorsWeights

CPU = torch.device("cpu")
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 512, "intermediate_size": 8192, "vocab_size": 512,
    "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "tie_word_embeddings": True, "torch_dtype": "float32",
}  # fmt: skip
"""Gate and up are 8 MiB for each of two ranks."""


def test_pages_of_matrices_that_become_one_are_given_back(tmp_path: Path) -> None:
    whole, split = tmp_path / "whole", tmp_path / "split"
    whole.mkdir()
    (whole / "config.json").write_text(json.dumps(CONFIG))
    config = load_model_config(whole)
    dummy = DummyWeights(config, CPU, torch.float32)
    save_file({name: dummy.tensor(name).clone() for name in expected_tensors(config)}, whole / "model.safetensors")
    assert main(["--model", str(whole), "-tp", "2", "--output_dir", str(split)]) == 0
    own = shard_model(config, 1, 2)
    for folder in (whole, split):
        source = SafetensorsWeights(folder, own, CPU, torch.float32)
        parameters = Parameters(source, own.tensors.found_in(source.names))
        joined = parameters.read(parameters.linear("layers.0.mlp.up").weights)
        assert joined.shape == (8192, 512)
        assert sum(map(resident, folder.rglob("*.safetensors"))) > (14 << 20)
        source.tensor("model.norm.weight")
        assert sum(map(resident, folder.rglob("*.safetensors"))) < (2 << 20)
        del source, parameters
