"""GGUF files made with the ``gguf`` package, loaded as the models they were made from."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf")

from engine_support.gguf_models import NAMES, TEXTS, Model, byte_level, read  # noqa: E402

from blade_llm.api.common.served_model import ModelSource, load_served_model  # noqa: E402
from blade_llm.hub.resolve import resolve_model  # noqa: E402
from blade_llm.models.config import load_model_config  # noqa: E402
from blade_llm.models.errors import ModelFilesError  # noqa: E402
from blade_llm.models.tensors import expected_tensors  # noqa: E402
from blade_llm.spec.slices import Slice  # noqa: E402
from blade_llm.text.tokenizer import Tokenizer as ModelTokenizer  # noqa: E402
from blade_llm.weights.checkpoint import check_tensors, open_checkpoint  # noqa: E402
from blade_llm.weights.gguf import folder as gguf_folder_module  # noqa: E402
from blade_llm.weights.gguf import header as gguf_header  # noqa: E402
from blade_llm.weights.gguf import index as gguf_index  # noqa: E402
from blade_llm.weights.sources import SafetensorsWeights  # noqa: E402


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=["LlamaForCausalLM", "Qwen2ForCausalLM"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    return Model(tmp_path, request.param, tie_word_embeddings=request.param.startswith("Qwen"))


def test_the_configuration_comes_from_the_metadata(model: Model) -> None:
    found = load_model_config(resolve_model(str(model.write())))
    expected = model.config
    for field in ("architecture", "decoder", "kv"):
        assert getattr(found, field) == getattr(expected, field), field
    assert found.eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("kind", "error"), [("F32", 0.0), ("F16", 1e-3), ("BF16", 4e-3), ("Q8_0", 6e-3), ("Q4_0", 0.13)]
)
def test_every_tensor_is_that_of_the_model(model: Model, kind: str, error: float) -> None:
    folder = resolve_model(str(model.write(kind)))
    assert check_tensors(open_checkpoint(folder), expected_tensors(load_model_config(folder))) == []
    for name, value in read(folder).items():
        assert np.abs(value - model.tensors[name]).max() <= error * np.abs(model.tensors[name]).max(), name


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_a_block_of_a_tensor_is_that_of_the_whole(model: Model, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of heads whose rows were reordered, too; other rows are not converted."""
    folder = resolve_model(str(model.write(kind)))
    whole, config = read(folder), load_model_config(folder)
    converted: list[int] = []
    numbers = gguf_index.GgufFile._numbers
    monkeypatch.setattr(
        gguf_index.GgufFile,
        "_numbers",
        lambda self, stored, entry: converted.append(len(stored)) or numbers(self, stored, entry),
    )
    source = SafetensorsWeights(folder, config, torch.device("cpu"), torch.float32)
    for name, value in whole.items():
        height = value.shape[0]
        for rows in (range(height // 2), range(height // 2, height), range(3, height - 5), range(5, 5)):
            del converted[:]
            assert np.array_equal(source.tensor(name, Slice(rows=rows)).numpy(), value[rows.start : rows.stop]), name
            if value.ndim == 2 and len(rows) == height // 2:
                assert converted == [len(rows)], name
        if value.ndim == 2:
            found = source.tensor(name, Slice(rows=range(2, 9), columns=range(4, 20))).numpy()
            assert np.array_equal(found, value[2:9, 4:20]), name


@pytest.mark.parametrize(("kind", "block_bytes"), [("Q4_K", 144), ("Q6_K", 210), ("Q5_K", 176)])
def test_blocks_of_256_are_what_the_reference_makes_of_them(tmp_path: Path, kind: str, block_bytes: int) -> None:
    model, name = Model(tmp_path, "Qwen2ForCausalLM"), "model.layers.1.mlp.down_proj.weight"
    random = np.random.default_rng(2)
    blocks = random.integers(0, 256, (256 * 2, block_bytes), dtype=np.uint8)
    scale = np.float16(0.01).view(np.uint16).item().to_bytes(2, "little")
    for place in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind]:
        blocks[:, place : place + 2] = np.frombuffer(scale, dtype=np.uint8)
    data = blocks.reshape(256, -1)
    folder = resolve_model(str(model.write("Q8_0", raw={name: (data, kind)})))
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(read(folder)[name], expected)
    assert open_checkpoint(folder).tensors[name].dtype == kind


def test_the_tokenizer_and_the_template_come_from_the_metadata(model: Model) -> None:
    folder = resolve_model(str(model.write()))
    found, expected = ModelTokenizer(folder), byte_level()
    for text in TEXTS:
        assert found.encode(text) == expected.encode(text).ids
        assert found.decode(found.encode(text)) == text
    assert found.encode("<|im_start|>x")[0] == 1
    assert found.eos_token_id == 2
    served = load_served_model(ModelSource(folder=str(folder), vocab_size=320))
    assert served.chat_template is not None


def test_sentence_piece_merges_follow_from_the_scores(tmp_path: Path) -> None:
    from blade_llm.weights.gguf.tokenizer import tokenizer_of

    pieces = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
    ]
    words = ["\u2581t", "he", "\u2581the", "in", "re", "\u2581", "t", "h", "e", "i", "n", "r"]
    pieces += [(word, -float(rank), 1) for rank, word in enumerate(words)]
    tokens, scores, types = (list(column) for column in zip(*pieces, strict=True))
    tokenizer, config = tokenizer_of({
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    })  # fmt: skip
    assert tokenizer.encode("the rein").tokens == ["<s>", "\u2581the", "\u2581", "re", "in"]
    assert tokenizer.decode(tokenizer.encode("the é</s>").ids) == "the é"
    assert config == {"bos_token": "<s>", "eos_token": "</s>"}


def test_the_folder_is_made_once_for_each_content(model: Model) -> None:
    first = resolve_model(str(model.write()))
    assert resolve_model(str(model.file)) == first
    assert resolve_model(str(model.file.parent)) == first, "the only GGUF of a folder"
    assert resolve_model(str(model.write("F16"))) != first
    assert not first.exists(), "that of the content before"


def refused(file: Path) -> str:
    with pytest.raises(ModelFilesError) as caught:
        resolve_model(str(file))
    return str(caught.value)


def test_what_is_not_served_is_named(tmp_path: Path) -> None:
    model, name = Model(tmp_path, "Qwen2ForCausalLM"), "model.layers.0.mlp.up_proj.weight"
    assert "architecture 'mamba' is not supported in GGUF" in refused(model.write(arch="mamba"))
    assert "splits words as 'tekken' (tokenizer.ggml.pre)" in refused(model.write(pre="tekken"))
    assert "tokenizer 'bert' (tokenizer.ggml.model)" in refused(model.write(tokenizer="bert"))
    assert "experts (qwen2.expert_count)" in refused(model.write(qwen2__expert_count=8))
    blocks = np.zeros((512, 66), dtype=np.uint8)
    message = refused(model.write(raw={name: (blocks, "IQ2_XXS")}))
    assert "tensor 'blk.0.ffn_up.weight' is of type IQ2_XXS, which is not read; take a file of F16, Q8_0" in message
    assert str(model.file) in message


def test_a_type_that_nobody_knows(tmp_path: Path) -> None:
    file = Model(tmp_path, "Qwen2ForCausalLM").write()
    data = bytearray(file.read_bytes())
    name = b"blk.0.ffn_up.weight"
    place = data.index(name) + len(name) + 4 + 2 * 8
    data[place : place + 4] = (99).to_bytes(4, "little")
    file.write_bytes(data)
    assert "tensor 'blk.0.ffn_up.weight' is of type 99, which the gguf package does not know" in refused(file)


def test_files_that_are_cut_short_or_none(tmp_path: Path) -> None:
    model = Model(tmp_path, "Qwen2ForCausalLM")
    whole = model.write().read_bytes()
    for length in (10, 1000, len(whole) // 2):
        model.file.write_bytes(whole[:length])
        assert "is truncated" in refused(model.file)
    model.file.write_bytes(b"<html>")
    assert "is not a GGUF file" in refused(model.file)
    model.file.write_bytes(whole)
    folder = resolve_model(str(model.file))
    with model.file.open("r+b") as stream:
        stream.truncate(len(whole) - 64)
    with pytest.raises(ModelFilesError, match=r"tiny.gguf is truncated: tensor '.*' ends at byte"):
        open_checkpoint(folder)


def test_a_missing_tensor_is_named_as_the_hub_names_it(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    folder = resolve_model(str(Model(tmp_path, "Qwen2ForCausalLM").write(drop=name)))
    (problem,) = check_tensors(open_checkpoint(folder), expected_tensors(load_model_config(folder)))
    assert name in problem


def test_without_the_package_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Model(tmp_path, "Qwen2ForCausalLM").write()
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    assert gguf_index.MISSING_PACKAGE in refused(file)


def test_factors_of_llama_3_become_its_rule(tmp_path: Path) -> None:
    from blade_llm.weights.gguf.config import _scaling

    wavelengths = 2 * np.pi * 500_000.0 ** (np.arange(0, 128, 2) / 128)
    factors = np.ones(64)
    for place, wavelength in enumerate(wavelengths):  # as the paper's code has it, case by case
        if wavelength > 8192:
            factors[place] = 32.0
        elif wavelength >= 8192 / 4:
            smooth = (8192 / wavelength - 1) / 3
            factors[place] = 1 / ((1 - smooth) / 32.0 + smooth)
    found = _scaling({}, "llama", factors.astype(np.float32), 500_000.0, 128)
    assert found is not None
    assert (found["rope_type"], found["factor"]) == ("llama3", 32.0)
    with pytest.raises(ModelFilesError, match="rotary factors"):
        _scaling({}, "llama", factors * 2, 500_000.0, 128)


def test_several_files_in_a_folder_are_not_guessed_from(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    assert "holds several GGUF files (a.gguf, b.gguf); give one of them" in refused(tmp_path)


@pytest.mark.parametrize("count", [1 << 40, gguf_header.MAX_ELEMENTS + 1])
def test_an_array_longer_than_the_file_is_refused_before_it_is_read(tmp_path: Path, count: int) -> None:
    file = tmp_path / "bomb.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a"
    file.write_bytes(head + struct.pack("<IIQ", 9, 0, count) + b"\0" * 100)
    assert f"an array of {count} elements" in refused(file)


def test_an_array_of_arrays_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "deep.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a"
    file.write_bytes(head + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 9, 1) * 10)
    assert "a field of type 9" in refused(file)


def test_the_folder_that_another_start_just_made_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(tmp_path, "Qwen2ForCausalLM")
    file, contents = model.write(), gguf_folder_module._contents
    faster: list[tuple[Path, int]] = []

    def after_another_one(parts: list[Path]) -> dict[str, str]:
        if not faster:
            faster.append((Path(), 0))
            made = resolve_model(str(parts[0]))
            faster.append((made, made.stat().st_ino))
        return contents(parts)

    monkeypatch.setattr(gguf_folder_module, "_contents", after_another_one)
    folder = resolve_model(str(file))
    assert (folder, folder.stat().st_ino) == faster[1]


def test_without_a_home_the_error_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Model(tmp_path, "Qwen2ForCausalLM").write()
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert "no home folder to keep its configuration in; set HOME or XDG_CACHE_HOME" in refused(file)


def test_metadata_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Model(tmp_path, "Qwen2ForCausalLM").write()
    monkeypatch.setattr(gguf_folder_module, "config_of", lambda *_: int([]))  # type: ignore[call-overload]
    assert "metadata of another kind than expected" in refused(file)


def test_a_tensor_that_the_architecture_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(tmp_path, "Qwen2ForCausalLM")
    monkeypatch.setitem(NAMES, "mlp.up_proj", "ffn_up_shexp")
    assert "tensor 'blk.0.ffn_up_shexp.weight' is not known of architecture 'qwen2'" in refused(model.write())
