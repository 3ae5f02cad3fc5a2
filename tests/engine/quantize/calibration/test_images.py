"""Calibration with images: what is computed of them is what transformers computes, and what a server is asked."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_support.image_cases import encode, waves
from engine_support.quantize_runs import quantize
from engine_support.served_vision import IMAGE, ServedVision, data_url, save_served
from engine_support.stored_tensors import tensors_of
from engine_support.vision_models import (
    Prompt,
    VisionModel,
    grids_of,
    logits_of,
    prompts_of,
    save_vision_model,
    several_images,
)
from PIL import Image

from blade_llm.models.errors import ModelFilesError
from blade_llm.models.implementation import read_model_config
from blade_llm.models.vision.tower import VisionTower
from blade_llm.quantize.calibration.images import images_of
from blade_llm.quantize.calibration.layer import QuantizedLayer
from blade_llm.quantize.calibration.layerwise import Layerwise
from blade_llm.quantize.calibration.prompts import encode_texts
from blade_llm.quantize.calibration.samples import Samples
from blade_llm.quantize.calibration.texts import read_texts
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.report import REPORT_NAME
from blade_llm.quantize.source import TensorReader
from blade_llm.spec.vision.images import ImagePixels

FAMILIES = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl", "internvl"]


def file(height: int, width: int) -> bytes:
    return encode(Image.fromarray(waves(height, width, 3)), "PNG")


CAT, DOG = file(40, 56), file(31, 90)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return save_vision_model(tmp_path_factory.mktemp(request.param), request.param)


def samples_of(prompts: list[Prompt]) -> Samples:
    pixels = {each.digest: each for prompt in prompts for each in prompt.pixels}
    ids = tuple(torch.tensor(prompt.tokens) for prompt in prompts)
    return Samples(ids, 0, (), tuple(tuple(prompt.spans) for prompt in prompts), pixels)


def test_each_layer_computes_what_transformers_does(model: VisionModel) -> None:
    """Positions on three axes and what DeepStack adds included; tokens of images are not what is predicted."""
    one, other = grids_of(model)
    begins = Prompt().image(model.spec, one, 3).text(9, 1).image(model.spec, other, 4)
    prompts = [*prompts_of(model), several_images(model), begins, Prompt().text(13, 5)]
    samples = samples_of(prompts)
    reader = TensorReader(model.folder)
    images = images_of(samples, model.config, reader)
    found = Layerwise(model.config, reader, samples, QuantizeOptions(), {}, images)
    states = found.model.embedded()
    for index in range(found.num_layers):
        found.compute_quantized(index, QuantizedLayer(), states, states, found._all)
    loss, count = found.model.loss(states, samples.judges)
    expected = expected_count = 0.0
    for index, prompt in enumerate(prompts):
        wanted = samples.is_text(index)[1:]
        logits, targets = logits_of(model, prompt)[:-1], samples.token_ids[index][1:]
        expected += float(F.cross_entropy(logits[wanted], targets[wanted], reduction="sum"))
        expected_count += int(wanted.sum())
    assert count == expected_count
    assert math.isclose(loss, expected, rel_tol=2e-5)


@pytest.fixture(scope="module", params=["qwen2-vl", "internvl"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ServedVision:
    return save_served(tmp_path_factory.mktemp(request.param) / "tiny-vision", request.param)


def written(folder: Path, *lines: Any) -> Path:
    (folder / "pictures").mkdir(exist_ok=True)
    (folder / "pictures" / "dog.png").write_bytes(DOG)
    path = folder / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_a_text_with_images_is_a_users_message(served: ServedVision, tmp_path: Path) -> None:
    """As the chat template writes it, which other texts do not pass through."""
    content = [{"image": "pictures/dog.png"}, {"text": "which is "}, {"image": data_url(CAT)}, {"text": "bigger?"}]
    path = written(tmp_path, {"content": content}, {"text": "a plain text"})
    seen, plain = encode_texts(served.folder, read_model_config(served.folder), read_texts(path))
    shown = {"qwen2-vl": "<|vision_start|><|image_pad|><|vision_end|>", "internvl": "<IMG_CONTEXT>\n"}[served.family]
    conversation = f"<|im_start|>user\n{shown}which is {shown}bigger?<|im_end|>\n"
    assert seen.token_ids[: len(served.prompt(conversation, [DOG, CAT]))] == served.prompt(conversation, [DOG, CAT])
    assert sum(image.count for image in seen.images) == served.count(DOG, CAT)
    assert plain.token_ids == served.tokenizer.encode("a plain text")
    assert not plain.images


@pytest.mark.parametrize("algorithm", ["gptq", "awq", "smoothquant+"])
def test_the_whole_command(served: ServedVision, tmp_path: Path, algorithm: str) -> None:
    """Images change what weights become, the tower stays as it is, and the report counts their tokens."""
    flags = ("--bit", "4", "--block_wise_quant", "--block_size", "16", "--quant_algo", algorithm)
    texts = [{"text": f"text {index} about the cat"} for index in range(3)]
    for name, lines in (
        ("seen", [*({"content": [{"image": "pictures/dog.png"}, each]} for each in texts), *texts]),
        ("plain", [*texts, *texts]),
    ):
        path = written(tmp_path, *lines)
        assert quantize(served.folder, tmp_path / name, *flags, "--calib_data_file", str(path)) == 0
    seen, plain = (json.loads((tmp_path / name / REPORT_NAME).read_bytes()) for name in ("seen", "plain"))
    extra = seen["calibration"]["tokens"] - plain["calibration"]["tokens"]
    assert extra > 3 * served.count(DOG)
    assert seen["calibration"]["perplexity_before"] > 1
    before, after, other = (tensors_of(folder) for folder in (served.folder, tmp_path / "seen", tmp_path / "plain"))
    tower = {name for name in before if "visual" in name or "vision" in name or "projector" in name}
    assert tower
    assert all(torch.equal(before[name], after[name]) for name in tower)
    assert any(not torch.equal(after[name], other[name]) for name in after.keys() & other.keys())


def test_tries_embed_each_image_once(served: ServedVision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With mixed precision, whose tries each compute the whole model."""
    embedded = []
    begin = VisionTower.begin

    def counted(tower: VisionTower, pixels: Sequence[ImagePixels]) -> Any:
        embedded.extend(each.digest for each in pixels)
        return begin(tower, pixels)

    monkeypatch.setattr(VisionTower, "begin", counted)
    lines = [{"content": [{"image": data_url(image)}, {"text": "what is it?"}]} for image in (CAT, DOG, CAT)]
    flags = ("--bit", "3", "--max_perplexity_increase", "0.0001", "--quant_algo", "gptq")
    path = written(tmp_path, *lines)
    quantize(served.folder, tmp_path / "out", *flags, "--calib_data_file", str(path))
    assert len(embedded) == len(set(embedded)) == 2


def failure_of(folder: Path, path: Path) -> str:
    with pytest.raises(ModelFilesError) as caught:
        encode_texts(folder, read_model_config(folder), read_texts(path))
    return str(caught.value)


def test_what_cannot_be_read_names_the_line(served: ServedVision, text_model: Path, tmp_path: Path) -> None:
    good = {"content": [{"image": "pictures/dog.png"}, {"text": "a"}]}
    for image, why in (
        ("pictures/none.png", "content[0]"),
        ("/etc/hostname", "content[0]"),
        ("http://127.0.0.1/a.png", "content[0]"),
        ("texts.jsonl", "content[0]"),
    ):
        path = written(tmp_path, good, {"content": [{"image": image}, {"text": "a"}]})
        failure = failure_of(served.folder, path)
        assert f"--calib_data_file {path}, line 2: " in failure, failure
        assert why in failure
    token = IMAGE[served.family]
    failure = failure_of(served.folder, written(tmp_path, good, {"content": [good["content"][0], {"text": token}]}))
    assert "line 2: " in failure
    assert token in failure


def test_a_model_that_does_not_see(text_model: Path, tmp_path: Path) -> None:
    path = written(tmp_path, {"text": "b"}, {"content": [{"image": "pictures/dog.png"}, {"text": "a"}]})
    failure = failure_of(text_model, path)
    assert "line 2: " in failure
    assert "is not supported by this model" in failure
