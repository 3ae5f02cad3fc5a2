"""Engines with real adapters on a small model, beside engines of the merged models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from engine_support.adapters import merge, targets_of, write_adapter
from engine_support.fake_grammar import grammar_spec_of
from engine_support.feature_load import core_for, free_drafts
from engine_support.tiny_models import engine_config, save_model

from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs

GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, seed=1)
RANKS = (1, 2, 8, 16, 33, 64, 128, 256)
_PLACES = [[7, 8, 9], [9], [20, 30, 40], *([[11]] * 20), list(range(50, 120)), list(range(3, 90)), [12], []]
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sampled": {"sampling": msgspec.structs.replace(GREEDY, temperature=0.8, top_p=0.9, seed=4)},
    "penalties and bias": {
        "sampling": msgspec.structs.replace(GREEDY, repetition_penalty=1.3, logit_bias={13: 4.0, 14: -100.0})
    },
    "log-probabilities": {"sampling": msgspec.structs.replace(GREEDY, logprobs=3)},
    "prompt log-probabilities": {"sampling": msgspec.structs.replace(GREEDY, prompt_logprobs=2)},
    "samples": {"sampling": msgspec.structs.replace(GREEDY, temperature=0.9, seed=2), "sibling_ids": ["x", "y", "z"]},
    "beams": {"sampling": msgspec.structs.replace(GREEDY, beam_width=3), "sibling_ids": ["x", "y"]},
    "a grammar with forced tokens": {
        "sampling": SamplingParams(temperature=0.7, max_tokens=60, seed=3, grammar_spec=grammar_spec_of(_PLACES))
    },
    "embedding, last": {"pooling": "last"},
    "embedding, mean": {"pooling": "mean"},
}
"""What a request can want beside an adapter; fields of :class:`GenerateRequest`, of siblings parts of names."""


@dataclass
class Got:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt: list[TokenLogprobs | None] | None = None
    embedding: np.ndarray | None = None
    cached: int = 0
    error: str = ""


def make_folders(root: Path) -> Path:
    """Save ``base``, adapters ``0`` … of :data:`RANKS`, and the model merged with each: ``merged0`` …"""
    save_model(root / "base", "qwen2")
    targets = targets_of(root / "base")
    for number, rank in enumerate(RANKS):
        write_adapter(root / str(number), targets, rank=rank, seed=number)
        merge(root / "base", root / str(number), root / f"merged{number}")
    return root


def build_core(config: EngineConfig, **options: Any) -> EngineCore:
    """As the engine process does, with grammars that need no tokenizer. ``options``: of
    :meth:`EngineCore.from_config`."""
    return build_with_runner(config, **options)[0]


def build_with_runner(config: EngineConfig, **options: Any) -> tuple[EngineCore, TorchRunner]:
    runner = build_runner(config)
    core = core_for(config, runner, step_seconds=None if config.speculative is None else free_drafts(), **options)
    if runner.adapters is not None:
        core.serve_adapters(config, runner.adapters.reader(), cast("Any", runner.adapters.loaded))
    return core, runner


def core_of(folders: Path, names: Iterable[int] = range(len(RANKS)), **options: Any) -> EngineCore:
    modules = tuple((f"a{name}", str(folders / str(name))) for name in names)
    settings = {"enable_lora": True, "max_lora_rank": 256, "max_loras": 8, "max_model_len": 256, **options}
    return build_core(engine_config(folders / "base", lora_modules=modules, **settings))


def run(core: EngineCore, requests: Iterable[GenerateRequest]) -> dict[str, Got]:
    several = list(requests)
    results = {name: Got() for request in several for name in request.all_request_ids}
    for request in several:
        core.add(request)
    for _ in range(20_000):
        if not core.has_work:
            return results
        for output in core.step():
            got = results[output.request_id]
            got.tokens += output.token_ids
            got.logprobs += output.logprobs or []
            got.prompt = output.prompt_logprobs or got.prompt
            got.cached = output.cached_tokens or got.cached
            got.error = "" if output.error is None else str(output.error)
            if output.embedding is not None:
                got.embedding = np.frombuffer(output.embedding, dtype="<f4")
    raise AssertionError("did not finish")


def prompt(seed: int, length: int = 40) -> list[int]:
    return np.random.default_rng(seed).integers(3, 199, length).tolist()  # type: ignore[no-any-return]


def check_equal(found: Got, expected: Got) -> None:
    assert not found.error
    assert found.tokens == expected.tokens
    for some, others in ((found.logprobs, expected.logprobs), (found.prompt or [], expected.prompt or [])):
        assert len(some) == len(others)
        for one, other in zip(some, others, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert one.chosen == pytest.approx(other.chosen, abs=1e-3)
    assert (found.embedding is None) == (expected.embedding is None)
    if found.embedding is not None and expected.embedding is not None:
        np.testing.assert_allclose(found.embedding, expected.embedding, atol=1e-3)
