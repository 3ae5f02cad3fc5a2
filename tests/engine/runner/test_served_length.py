"""What a model is for the length it is asked to serve, whatever memory leaves of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import PHI3_LONGROPE, Row, save_row
from engine_support.runner_driver import Driver
from engine_support.tiny_models import engine_config

from blade_llm.models.config import load_model_config
from blade_llm.runner import build_runner
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.rope import LongRopeScaling
from blade_llm.spec.served_length import for_length

ORIGINAL = 64
MODEL_LENGTH = 512


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("phi3")
    fields = {"pad_token_id": 0, "original_max_position_embeddings": ORIGINAL, "rope_parameters": PHI3_LONGROPE,
              "sliding_window": 80, "max_position_embeddings": MODEL_LENGTH}  # fmt: skip
    row = Row("Phi3", "longrope", fields)
    return folder, save_row(folder, row)


def _decoder(folder: Path) -> DecoderSpec:
    decoder = load_model_config(folder).decoder
    assert isinstance(decoder, DecoderSpec)
    return decoder


@pytest.mark.parametrize(("length", "long", "window"), [(64, False, 0), (65, True, 0), (80, True, 0), (81, True, 80)])
def test_factors_and_windows_follow_the_length(model: tuple[Path, Any], length: int, long: bool, window: int) -> None:
    for layer in for_length(_decoder(model[0]), length).layers:
        assert layer.attention.rope is not None
        scaling = layer.attention.rope.scaling
        assert isinstance(scaling, LongRopeScaling)
        factors = tuple(PHI3_LONGROPE["long_factor" if long else "short_factor"])  # type: ignore[arg-type]
        assert scaling.short == scaling.long == factors
        assert layer.attention.window == window


def test_what_does_not_depend_on_the_length_stays(model: tuple[Path, Any]) -> None:
    decoder = _decoder(model[0])
    plain = replace(decoder, layers=tuple(replace(layer, attention=replace(layer.attention, rope=None, window=8))
                                          for layer in decoder.layers))  # fmt: skip
    assert for_length(plain, 9) == plain


@pytest.mark.parametrize("options", [{}, {"kv_cache_bytes": 48 * 384}, {"max_model_len": 48}], ids=str)
def test_the_rotation_does_not_depend_on_memory(model: tuple[Path, Any], options: dict[str, Any]) -> None:
    runner = build_runner(engine_config(model[0], **options))
    long = options.get("max_model_len", MODEL_LENGTH) > ORIGINAL
    if "kv_cache_bytes" in options:
        assert runner.max_model_len < ORIGINAL, "memory cuts the length below the original one"
    factors = torch.tensor(PHI3_LONGROPE["long_factor" if long else "short_factor"])
    exponents = torch.arange(4) / 4
    attention = runner.model_config.decoder.layers[0].attention  # type: ignore[union-attr]
    scale = attention.rope.scaling.attention_factor  # type: ignore[union-attr]
    expected = torch.cos(7 / (factors * 10000.0**exponents)) * scale
    rotary = runner.model.rotary[0]  # type: ignore[union-attr]
    torch.testing.assert_close(rotary.cos[7][: len(expected)], expected)


def test_beyond_the_original_length_logits_are_those_of_transformers(model: tuple[Path, Any]) -> None:
    """A window of 80 in a sequence of 100, and long factors."""
    folder, reference = model
    driver = Driver(build_runner(engine_config(folder)))
    prompt = torch.randint(2, 90, (100,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.inference_mode():
        expected = int(reference(torch.tensor([prompt])).logits[0, -1].argmax())
    assert driver.generate(0, prompt, 1) == [expected]
