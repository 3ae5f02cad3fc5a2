"""Which files of a model folder go with it to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from blade_llm.weights.split.space import copy_side_files, side_files

KEPT = (
    *("1_Pooling/config.json", "README.md", "bpe_vocab.txt.gz", "chat_template.jinja", "config.json"),
    *("generation_config.json", "merges.txt", "modules.json", "qwen.tiktoken", "sentencepiece.model", "tokenizer.json"),
)
LEFT = (
    *("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin.index.json", "training_args.bin"),
    *("rust_model.ot", "tf_model.h5", "weights.npz", "flax_model.msgpack", "optimizer.pt", "rng_state.pth"),
    *("model.onnx", "model.onnx_data", "model.onnx.data", "model_int8.onnx"),
    *("consolidated.safetensors", "consolidated.00.pth", "consolidated.safetensors.index.json", "consolidated.json"),
    *("model.safetensors.index.fp16.json", "model.fp32-00001-of-00002.safetensors", "params.index.v2.json"),
    *("all.zip", "all.tar", "all.tar.gz", "all.tgz", "all.7z", "tokenizer.json.tmp", "vocab.json.part"),
    *("merges.txt.incomplete", "adapter_config.json", "trainer_state.json", "events.out.tfevents.17.host.1.0"),
    *(".gitattributes", "blade_split.json"),
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    for name in (*KEPT, *LEFT):
        (folder / name).write_text(name)
    return folder


def test_what_goes_with_a_model(model: Path) -> None:
    assert [str(file.relative_to(model)) for file in side_files(model)] == sorted(KEPT)


def test_what_is_copied(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    copy_side_files(model, target, {"merges.txt"})
    found = {str(file.relative_to(target)): file.read_text() for file in target.rglob("*") if file.is_file()}
    assert found == {name: name for name in KEPT if name != "merges.txt"}
