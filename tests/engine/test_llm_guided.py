"""Structures in the offline API: the engine alone, no server and no validation in front of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_support.tiny_text import write_model, write_tokenizer

from blade_llm import LLM, SamplingParams
from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
from blade_llm.sampling.grammar_spec import GrammarSpec

CHOICE = GrammarSpec("choice", json.dumps(["first", "second"]))


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(write_model(tmp_path_factory.mktemp("guided") / "tiny"), load_format="dummy", num_threads=1)


def test_outputs_follow_their_grammar_specs(llm: LLM) -> None:
    params = [
        SamplingParams(max_tokens=40, seed=1, grammar_spec=CHOICE),
        SamplingParams(max_tokens=40, seed=2, grammar_spec=GrammarSpec("regex", "[0-9]{2}-[a-f]{3}")),
        SamplingParams(max_tokens=6, seed=3),
    ]
    choice, expression, free = llm.generate(["hello"] * 3, params)
    assert choice.outputs[0].text in ("first", "second")
    assert choice.outputs[0].finish_reason == "stop"
    assert len(expression.outputs[0].text) == 6
    assert len(free.outputs[0].token_ids) <= 6


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (GrammarSpec("json", '{"contains": {}}'), "contains"),
        (GrammarSpec("regex", "(a"), "unclosed group"),
        (GrammarSpec("choice", "[]"), "at least one alternative"),
    ],
)
def test_a_bad_structure_is_an_error_and_the_engine_goes_on(llm: LLM, spec: GrammarSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate("hello", SamplingParams(max_tokens=5, grammar_spec=spec))
    (result,) = llm.generate("hello", SamplingParams(max_tokens=20, grammar_spec=CHOICE))
    assert result.outputs[0].text in ("first", "second")


def test_contradictions_are_errors(llm: LLM) -> None:
    with pytest.raises(ValueError, match="ignore_eos cannot be combined with a structure"):
        llm.generate("hello", SamplingParams(grammar_spec=CHOICE, ignore_eos=True))
    with pytest.raises(ValueError, match="beam_width cannot be combined with a structure"):
        llm.generate("hello", SamplingParams(grammar_spec=CHOICE, beam_width=2))


def test_the_warm_up_is_part_of_the_start(tmp_path: Path) -> None:
    """It uses the tokenizer that the server was given."""
    model = write_model(tmp_path / "model")
    elsewhere = write_tokenizer(tmp_path / "tokenizer")
    (model / "tokenizer.json").unlink()
    config = EngineConfig(
        model=str(model),
        served_names=("m",),
        load_format="dummy",
        num_threads=1,
        tokenizer_dir=str(elsewhere),
        enable_json_warmup=True,
    )
    core = build_core(config)
    assert "grammars" in core.info.timings


def test_api_servers_get_the_size_of_embeddings(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    core = build_core(EngineConfig(model=str(model), served_names=("m",), load_format="dummy", num_threads=1))
    state = core.state(epoch="e", sequence=0, draining=False)
    assert core.ready(state).hidden_size == 64
