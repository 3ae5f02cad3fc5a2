"""What the model card calls the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from blade_llm.quantize.model_card import model_card
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.report import FORMAT, Report, TensorReport


def title(model: str) -> str:
    tensor = TensorReport((4, 4), 0.1, 8.0, 32, 16, 0.0)
    report = Report(FORMAT, "f", model, QuantizeOptions(), {"a.weight": tensor}, (), 32, 16, 0.0)
    return next(line for line in model_card(report, "").splitlines() if line.startswith("# "))


def test_its_title(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "llama" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "named").symlink_to(inner)
    monkeypatch.chdir(tmp_path / "llama")
    for model, name in {
        ".": "llama",
        "./": "llama",
        "inner/..": "llama",
        "inner": "inner",
        "file://.": "llama",
        f"{tmp_path}/named": "named",
        "/": "model",
        "org/llama": "org/llama",
    }.items():
        assert title(model) == f"# {name}, quantised", model
    monkeypatch.chdir(inner)
    assert title("..") == "# llama, quantised"
