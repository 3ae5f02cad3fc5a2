"""What ``blade_llm_check`` says of heads that draft from hidden states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from engine_support.heads import save_eagle3, save_with_mtp
from engine_support.tiny_models import SHAPE, save_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.check.model import check_model
from blade_llm.config import EngineConfig, SpeculativeConfig

MTP = SpeculativeConfig(method="mtp")


def with_tokenizer(folder: Path) -> Path:
    """The tokenizer that a model needs, and a head does not have."""
    Tokenizer(WordLevel({f"w{i}": i for i in range(SHAPE["vocab_size"])}, "w0")).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    save_model(tmp_path / "target", "llama", num_hidden_layers=5)
    return with_tokenizer(tmp_path / "target")


@pytest.fixture
def head(tmp_path: Path) -> Path:
    save_eagle3(tmp_path / "head")
    return tmp_path / "head"


def test_a_head_needs_no_tokenizer(target: Path, head: Path) -> None:
    item = check_model(target, speculative=SpeculativeConfig(method="eagle3", draft_model=str(head)))
    assert item.status == "PASS", item.detail


def test_a_head_lacks_nothing(target: Path, head: Path) -> None:
    file = head / "model.safetensors"
    tensors = load_file(file)
    tensors["d2t"] = tensors["d2t"].float()
    del tensors["midlayer.hidden_norm.weight"]
    save_file(tensors, file)
    item = check_model(target, speculative=SpeculativeConfig(method="eagle3", draft_model=str(head)))
    assert item.status == "FAILED"
    assert "1 of 14 tensors are missing: midlayer.hidden_norm.weight" in item.detail
    assert "d2t is F32 in model.safetensors: these are indices, I64" in item.detail


def test_a_head_of_another_model_is_named(target: Path, head: Path) -> None:
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps({**config, "hidden_size": 4096}))
    item = check_model(target, speculative=SpeculativeConfig(method="eagle3", draft_model=str(head)))
    assert item.status == "FAILED"
    assert "'hidden_size' is 4096, the model's 64: this is the head of another model" in item.detail


def test_layers_for_multi_token_prediction_are_checked_in_the_models_own_files(tmp_path: Path) -> None:
    save_with_mtp(tmp_path, "mimo")
    with_tokenizer(tmp_path)
    assert check_model(tmp_path, speculative=MTP).status == "PASS"
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.mtp_layers.0.input_proj.weight"] = torch.zeros(3, 3)
    save_file(tensors, tmp_path / "model.safetensors")
    assert check_model(tmp_path).status == "PASS"
    item = check_model(tmp_path, speculative=MTP)
    assert item.status == "FAILED"
    assert "model.mtp_layers.0.input_proj.weight is [3, 3]" in item.detail


def test_states_and_keys_of_a_head_count_in_the_memory(tmp_path: Path) -> None:
    save_with_mtp(tmp_path, "qwen3")
    sizes = []
    for speculative in (None, MTP):
        config = EngineConfig(
            model=str(tmp_path),
            served_names=("m",),
            dtype="float32",
            kv_cache_bytes=1 << 20,
            max_num_seqs=64,
            speculative=speculative,
        )
        item = check_memory_fit(config, limit=4 << 30)
        sizes.append(int(item.detail.split(" blocks")[0].rsplit("(", 1)[1]))
        assert ("+ draft model" in item.detail) == (speculative is not None)
    kv, of_head = 2 * 3 * 2 * 16, 2 * 2 * 16 + 64
    assert sizes[1] == pytest.approx(sizes[0] * kv / (kv + of_head), abs=1)


def test_states_of_several_layers_count_in_a_step(target: Path, head: Path) -> None:
    """Three of them, the same side by side, and the one that is made of them; a head of the last norm's has none."""
    peaks = []
    for speculative in (None, SpeculativeConfig(method="eagle3", draft_model=str(head))):
        config = EngineConfig(
            model=str(target), served_names=("m",), dtype="float32", max_batch_tokens=4096, speculative=speculative
        )
        detail = check_memory_fit(config, limit=4 << 30).detail
        peaks.append(int(detail.partition("activations ")[2].split()[0]))
    assert peaks[1] - peaks[0] == (2 * 3 + 1) * 4096 * SHAPE["hidden_size"] * 4


def test_of_several_ranks_each_has_a_part_of_the_head(tmp_path: Path) -> None:
    """All but its norms and what joins embeddings and states; the states of the model are whole on each rank."""
    save_with_mtp(tmp_path, "qwen3")
    sizes, blocks = [], []
    for ranks in (1, 2):
        config = EngineConfig(
            model=str(tmp_path),
            served_names=("m",),
            dtype="float32",
            kv_cache_bytes=ranks << 20,
            max_num_seqs=100,
            speculative=MTP,
            tensor_parallel_size=ranks,
        )
        item = check_memory_fit(config, limit=4 << 30)
        assert item.status == "PASS", item.detail
        sizes.append(int(item.detail.partition("+ draft model ")[2].split()[0]))
        blocks.append(int(item.detail.split(" blocks")[0].rsplit("(", 1)[1]))
    size = SHAPE["hidden_size"]
    replicated = 4 * (2 * size * size + 5 * size + 2 * 16)
    assert sizes[0] - replicated == 2 * (sizes[1] - replicated)
    kv, of_head = 2 * 3 * 2 * 16, 2 * 2 * 16
    assert blocks[1] == pytest.approx(blocks[0] * (kv + of_head + 64) / ((kv + of_head) / 2 + 64), abs=2)
