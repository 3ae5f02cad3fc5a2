"""Starts that write and read packed weights, and what they read of the model's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import engine_config
from torch import Tensor

from blade_llm.runner import build_runner
from blade_llm.weights.packed_cache import loading
from blade_llm.weights.packed_cache.sources import WritingSource
from blade_llm.weights.sources import SafetensorsWeights


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
