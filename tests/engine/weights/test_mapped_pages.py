"""Loading gives back the file pages it has read, and never the bytes of anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from engine_support.resident_pages import resident
from safetensors import safe_open
from safetensors.torch import save_file

from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.tensors import expected_tensors
from blade_llm.weights.mapped_pages import MappedPages
from blade_llm.weights.sources import DummyWeights, SafetensorsWeights

CPU = torch.device("cpu")


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, ModelConfig]:
    """16 MiB of embedding, and one layer."""
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 512, "intermediate_size": 2048,
        "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 8192,
        "max_position_embeddings": 64, "tie_word_embeddings": True, "torch_dtype": "float32",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = load_model_config(tmp_path)
    dummy = DummyWeights(found, CPU, torch.float32)
    save_file({name: dummy.tensor(name).clone() for name in expected_tensors(found)}, tmp_path / "model.safetensors")
    return tmp_path, found


def test_pages_that_were_read_are_given_back_and_read_again_when_needed(model: tuple[Path, ModelConfig]) -> None:
    folder, config = model
    file = folder / "model.safetensors"
    with safe_open(file, framework="pt", device="cpu") as opened:
        tensor = opened.get_tensor("model.embed_tokens.weight")
    total = float(tensor.double().sum())
    before = resident(file)
    pages = MappedPages()
    pages.note(file, tensor.data_ptr(), tensor.nbytes)
    assert pages.release() > 15 << 20
    assert resident(file) < before - (15 << 20)
    assert pages.release() == 0
    assert float(tensor.double().sum()) == total
    del config


def test_memory_that_is_no_file_is_left_alone(model: tuple[Path, ModelConfig]) -> None:
    tensor = torch.ones(1 << 20)
    pages = MappedPages()
    pages.note(model[0] / "model.safetensors", tensor.data_ptr(), tensor.nbytes)
    assert pages.release() == 0
    assert bool((tensor == 1).all())


def test_a_loaded_model_keeps_no_pages_of_what_it_copied(model: tuple[Path, ModelConfig]) -> None:
    folder, config = model
    weights = SafetensorsWeights(folder, config, CPU, torch.float32)
    expected = DummyWeights(config, CPU, torch.float32)
    parts = [f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up")]
    assert torch.equal(weights.stacked(parts), expected.stacked(parts))
    embedding = weights.tensor("model.embed_tokens.weight")
    norm = weights.tensor("model.norm.weight")
    assert torch.equal(embedding, expected.tensor("model.embed_tokens.weight"))
    del weights
    assert resident(folder / "model.safetensors") < 1 << 20
    assert torch.equal(embedding[-1], expected.tensor("model.embed_tokens.weight")[-1])
    assert bool((norm == 1).all())


def test_dummy_rows_all_differ(model: tuple[Path, ModelConfig]) -> None:
    embedding = DummyWeights(model[1], CPU, torch.float32).tensor("model.embed_tokens.weight")
    assert len(torch.unique(embedding[:, :4], dim=0)) == len(embedding)
    assert float(embedding.std()) == pytest.approx(0.02, rel=0.02)
