"""`fit`: what it passes to `blade_llm_fit`, which flags that takes, and how the result is printed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from blade_llm.cli.fit import _parser as engine_parser
from blade_operator import main as program
from blade_operator.cli import fit
from blade_operator.cli.arguments import parse

MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return f"file://{tmp_path}"


def test_the_engine_answers_in_text_json_and_yaml(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    command = ("fit", model, "--memory", "4Gi", "--quantization", "int8", "--engine_flags=--max_num_seqs 7")
    assert program.main(command) == 0
    assert "It fits." in capfd.readouterr().out
    assert program.main([*command, "-o", "json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["fits"] is True
    assert found["concurrency"] <= 7
    assert program.main([*command, "-o", "yaml"]) == 0
    assert yaml.safe_load(capfd.readouterr().out) == found


def test_its_status_and_its_error_are_passed_on(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert program.main(["fit", model, "--memory", "700Mi", "-o", "yaml"]) == 1
    assert yaml.safe_load(capfd.readouterr().out)["fits"] is False
    assert program.main(["fit", "/no/such", "-o", "yaml"]) == 1
    assert "does not exist" in capfd.readouterr().err


def test_every_flag_is_one_of_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that the engine loses or renames must go here, too."""
    flags = dict.fromkeys((*fit._OWN, *fit._ENGINE), "1")
    started: list[list[str]] = []

    def record(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        started.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", record)
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", value)]
    options = parse(["fit", "org/name", *words, "--engine_flags", "--max_loras 4"])
    assert fit.run(options) == 0
    [command] = started
    known = {option for action in engine_parser()._actions for option in action.option_strings}
    assert {word for word in command if word.startswith("--")} <= known
    passed = dict(zip(command[5:-4:2], command[6:-4:2], strict=True))
    assert passed == {f"--{name}": "1" for name in flags}
    assert command[-4:] == ["--max_loras", "4", "--output", "text"]


def test_a_claim_is_not_read_here(capfd: pytest.CaptureFixture[str]) -> None:
    assert program.main(["fit", "pvc://models/qwen"]) == 1
    assert "a claim is read in its cluster alone" in capfd.readouterr().err


def test_without_the_engine_it_says_where_that_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert program.main(["fit", "org/name"]) == 1
    assert "docker run --rm IMAGE blade_llm_fit" in capfd.readouterr().err
