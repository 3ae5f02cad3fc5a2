"""Starts that write and read packed weights, and what they read of the model's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import engine_config
from torch import Tensor

from blade_llm.kernels.linear.native import NativeLinear
from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.decoder import Decoder
from blade_llm.runner import build_runner
from blade_llm.weights.loader import load_model
from blade_llm.weights.packed_cache import loading
from blade_llm.weights.packed_cache.sources import WritingSource
from blade_llm.weights.sources import SafetensorsWeights

CPU, BF16 = torch.device("cpu"), torch.bfloat16
LIMIT = 1 << 40


def keep_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of any size are kept, and a test goes on when a file is complete."""
    finish = WritingSource.finish

    def finish_and_wait(source: WritingSource) -> None:
        if (thread := finish(source)) is not None:
            thread.join()

    monkeypatch.setattr(WritingSource, "finish", finish_and_wait)
    monkeypatch.setattr(loading, "LEAST_BYTES", 0)


def names_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tensors that are read from the model's files from now on."""
    read: list[str] = []
    mapped = SafetensorsWeights._mapped
    monkeypatch.setattr(
        SafetensorsWeights, "_mapped", lambda self, name, index=None: read.append(name) or mapped(self, name, index)
    )
    return read


def logits(folder: Path, cache: Path | None, **options: Any) -> Tensor:
    """[vocabulary] after a prompt, of a model that starts with packed weights in ``cache``, or without."""
    where = {} if cache is None else {"packed_cache_dir": str(cache), "packed_cache_bytes": 1 << 40}
    driver = Driver(build_runner(engine_config(folder, dtype="bfloat16", **where, **options)))
    driver.enter(0, prompt_of(40))
    driver.step({0: 40})
    return driver.logits[0]


def load(
    model: Path, cache: Path | None, limit: int = LIMIT, config: ModelConfig | None = None, **options: object
) -> Decoder:
    """A model in bfloat16 on the CPU, with packed weights in ``cache``, or without."""
    return load_model(
        model,
        config or load_model_config(model),
        load_format="auto",
        max_positions=32,
        device=CPU,
        dtype=BF16,
        packed_cache=None if cache is None else (cache, limit),
        **options,  # type: ignore[arg-type]
    )


def linears(model: Decoder) -> list[NativeLinear]:
    """Its packed weights."""
    layers = [[each.attention.qkv, each.attention.output, each.mlp.up, each.mlp.down] for each in model.layers]
    found = [linear.packed for linear in [*(each for layer in layers for each in layer), model.head]]
    assert all(isinstance(linear, NativeLinear) for linear in found)
    return found  # type: ignore[return-value]


def assert_equal(found: Decoder, expected: Decoder) -> None:
    """They have the same weights, which compute the same."""
    assert torch.equal(found.embedding, expected.embedding)
    assert torch.equal(found.norm.weight, expected.norm.weight)
    for one, other in zip(linears(found), linears(expected), strict=True):
        assert (one.outputs, one.inputs, one.form) == (other.outputs, other.inputs, other.form)
        assert one.deterministic == other.deterministic
        for part, wanted in zip(one.parts, other.parts, strict=True):
            assert torch.equal(part, wanted)
        row = torch.ones(1, one.inputs, dtype=BF16)
        assert torch.equal(one(row), other(row))


def files(cache: Path) -> list[Path]:
    """Those of packed weights, unfinished ones included."""
    return sorted(cache.glob("*.p*"))
