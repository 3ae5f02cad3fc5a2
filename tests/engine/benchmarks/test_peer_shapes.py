"""The models of `make bench`, its rows' ratios, and the results that a run keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import figures
from benchmarks.figures import Figure, report
from benchmarks.peers import before
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import OURS, earlier
from benchmarks.peers.rounds import Row
from benchmarks.peers.selection import selected
from benchmarks.peers.shapes import QWEN2, QWEN3, QWEN3_MOE, Shape

from blade_llm import LLM, SamplingParams

SMALL: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def small(shape: Shape) -> Shape:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32} if shape.experts else {}
    return replace(shape, config={**shape.config, **SMALL, **heads, **experts})


@pytest.mark.parametrize("shape", [QWEN2, QWEN3, QWEN3_MOE], ids=lambda shape: shape.name)
def test_a_random_model_is_served_and_never_stops_early(shape: Shape, tmp_path: Path) -> None:
    folder = random_model(tmp_path / "model", small(shape))
    llm = LLM(str(folder), max_model_len=64, kv_cache_bytes=1 << 20)
    [result] = llm.generate([[300, 400, 500]], SamplingParams(temperature=0.0, max_tokens=20))
    assert len(result.outputs[0].token_ids) == 20


def test_bytes_of_keys_and_values_a_token() -> None:
    assert (QWEN2.kv_token_bytes, QWEN3.kv_token_bytes, QWEN3_MOE.kv_token_bytes) == (12_288, 114_688, 12_288)


def test_an_earlier_checkout_is_imported_from_its_folder(tmp_path: Path) -> None:
    package = tmp_path / "engine" / "blade_llm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    environment = {**os.environ, **earlier(OURS, tmp_path).variables()}
    program = [sys.executable, "-c", "import blade_llm; print(blade_llm.__file__)"]
    found = subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout
    assert found.strip() == str(package / "__init__.py")


def test_ratios_are_of_the_same_round() -> None:
    row = Row({"bladellm": [10.0, 30.0, 22.0], "bladellm-before": [10.0, 20.0, 20.0]})
    found = before._figures("decode", row, OURS, earlier(OURS, Path("/other")), "tok/s", ">=", 0.99)
    values = {figure.name: figure.value for figure in found}
    assert values["decode_now_vs_before"] == pytest.approx(1.1)
    assert values["decode_now_vs_before_first_quartile"] == pytest.approx(1.05)
    assert values["decode_now_vs_before_third_quartile"] == pytest.approx(1.3)


def test_parts_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert selected("ROWS", ["a", "b"]) == ["a", "b"]
    monkeypatch.setenv("ROWS", "b")
    assert selected("ROWS", ["a", "b"]) == ["b"]
    monkeypatch.setenv("ROWS", "b,c")
    with pytest.raises(SystemExit, match="c is none of a, b"):
        selected("ROWS", ["a", "b"])


def test_figures_of_other_rows_are_kept_where_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)

    def kept() -> dict[str, float]:
        return {each["name"]: each["value"] for each in json.loads((tmp_path / "x.json").read_text())["figures"]}

    report("x", [Figure("a", 1.0, ""), Figure("b", 2.0, "")])
    report("x", [Figure("b", 3.0, "")], keep=True)
    assert kept() == {"a": 1.0, "b": 3.0}
    report("x", [Figure("b", 4.0, "")])
    assert kept() == {"b": 4.0}
