"""Automatic mixed precision: layers stay as they are until perplexity is within what is allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.calibrated import DEMO, QUESTIONS, prompt_for, write_conversations
from engine_support.killed import disk_calls, killed_at
from engine_support.quantize_runs import content, quantize
from engine_support.stored_tensors import tensors_of

from blade_llm import LLM, SamplingParams
from blade_llm.models.implementation import read_model_config
from blade_llm.quantize.calibration import mixed, states
from blade_llm.quantize.report import REPORT_NAME
from blade_llm.weights.checkpoint import check_weights, open_checkpoint

COARSE = ("--bit", "3")
MODEL = DEMO / "draft"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the model says of itself: 3 bits forget some of it."""
    folder: Path = tmp_path_factory.mktemp("texts")
    llm = LLM(model=MODEL, dtype="float32", kv_cache_bytes=32 << 20, num_threads=1, max_num_seqs=8)
    asked = [question for question, _ in QUESTIONS[:7]]
    answers = llm.generate([prompt_for(question) for question in asked], SamplingParams(max_tokens=64, temperature=0))
    said = [(question, [answer.outputs[0].text]) for question, answer in zip(asked, answers, strict=True)]
    return write_conversations(folder / "texts.jsonl", said)


def flags_of(texts: Path, *more: str) -> tuple[str, ...]:
    return (*COARSE, "--calib_data_file", str(texts), "--max_perplexity_increase", *more)


def report_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / REPORT_NAME).read_text())
    return found


def increase_of(folder: Path) -> float:
    found = report_of(folder)["calibration"]
    return float(found["perplexity_after"] / found["perplexity_before"] - 1)


@pytest.fixture(scope="module")
def everything(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All layers quantised."""
    folder: Path = tmp_path_factory.mktemp("all") / "all"
    assert quantize(MODEL, folder, *flags_of(texts, "100")) == 0
    return folder


@pytest.fixture(scope="module")
def half(everything: Path) -> float:
    """Half of what perplexity grows by then."""
    found = increase_of(everything) / 2
    assert found > 0
    return found


def test_the_most_sensitive_layers_stay_as_they_are(
    texts: Path, everything: Path, half: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = report_of(everything)
    assert every["calibration"]["left"] == []
    capsys.readouterr()
    assert quantize(MODEL, tmp_path / "some", *flags_of(texts, str(half))) == 0
    left = report_of(tmp_path / "some")["calibration"]["left"]
    assert 0 < len(left) < len(every["tensors"])
    assert increase_of(tmp_path / "some") <= half
    assert f"{len(left)} weights stay as they are, so that perplexity grows less" in capsys.readouterr().err
    config = json.loads((tmp_path / "some" / "config.json").read_text())["quantization_config"]
    assert set(left) < set(config["ignore"])
    before, after = tensors_of(MODEL), tensors_of(tmp_path / "some")
    assert all(torch.equal(before[f"{module}.weight"], after[f"{module}.weight"]) for module in left)
    assert not check_weights(open_checkpoint(tmp_path / "some"), read_model_config(tmp_path / "some"))
    errors = {name.removesuffix(".weight"): tensor["output_error"] for name, tensor in every["tensors"].items()}
    stay = [error for module, error in errors.items() if module in left]
    assert max(stay) == max(errors.values())


def test_killed_it_ends_with_the_same_bytes(
    texts: Path, half: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = flags_of(texts, str(half))
    assert quantize(MODEL, tmp_path / "made", *flags) == 0
    calls = disk_calls(lambda: quantize(MODEL, tmp_path / "counted", *flags))
    for place in (3, calls // 3, calls // 2, calls - 3):
        output = tmp_path / str(place)
        killed_at(place, lambda output=output: quantize(MODEL, output, *flags))  # type: ignore[misc]
        with monkeypatch.context() as patch:
            if place > 20:  # what stays as it is was found already
                patch.setattr(mixed, "_try", lambda *arguments: pytest.fail("tried again"))
            assert quantize(MODEL, output, *flags) == 0
        assert content(output) == content(tmp_path / "made"), place


def test_tries_are_not_made_again(texts: Path, half: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a run that goes on where another was killed in its third try. So little is allowed that it needs as many."""
    tries: list[int] = []
    original = mixed._try

    def counted(most: int) -> Any:
        def tried(*arguments: Any) -> Any:
            if len(tries) == most:
                raise KeyboardInterrupt
            tries.append(1)
            return original(*arguments)

        return tried

    monkeypatch.setattr(mixed, "_try", counted(100))
    assert quantize(MODEL, tmp_path / "made", *flags_of(texts, str(half / 4))) == 0
    needed = len(tries)
    assert needed > 2
    tries.clear()
    monkeypatch.setattr(mixed, "_try", counted(2))
    assert quantize(MODEL, tmp_path / "o", *flags_of(texts, str(half / 4))) == 130
    monkeypatch.setattr(mixed, "_try", counted(100))
    assert quantize(MODEL, tmp_path / "o", *flags_of(texts, str(half / 4))) == 0
    assert len(tries) == needed
    assert content(tmp_path / "o") == content(tmp_path / "made")


def test_hidden_states_of_tries_lie_in_files(
    texts: Path, half: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``--cpu_offload``, and the result is the same."""
    made, tries = [], []
    mapped, tried = states._mapped, mixed._try
    monkeypatch.setattr(states, "_mapped", lambda *arguments: made.append(1) or mapped(*arguments))
    monkeypatch.setattr(mixed, "_try", lambda *arguments: tries.append(1) or tried(*arguments))
    assert quantize(MODEL, tmp_path / "memory", *flags_of(texts, str(half))) == 0
    assert not made
    tries.clear()
    assert quantize(MODEL, tmp_path / "files", *flags_of(texts, str(half)), "--cpu_offload") == 0
    layers = read_model_config(MODEL).num_layers
    assert len(tries) > 1
    assert len(made) == (layers + 1) * (len(tries) + 1)
    assert content(tmp_path / "files") == content(tmp_path / "memory")


def test_what_cannot_be_kept(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = mixed._try
    monkeypatch.setattr(mixed, "_try", lambda *arguments: (0.5, original(*arguments)[1]))
    assert quantize(MODEL, tmp_path / "o", *flags_of(texts, "0.01")) == 1
    said = capsys.readouterr().err
    assert "--max_perplexity_increase 0.01 cannot be kept: all quantised it is 0.5, and too much with a single" in said


@pytest.mark.parametrize("share", ["-1", "nan", "inf"])
def test_shares_that_are_none(tmp_path: Path, share: str) -> None:
    with pytest.raises(SystemExit) as caught:
        quantize(MODEL, tmp_path / "o", f"--max_perplexity_increase={share}")
    assert caught.value.code == 2


def test_the_same_command_finds_its_work_done(
    texts: Path, half: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Layers that were left make other files than all layers would: Kubernetes gives a Job's command again."""
    assert quantize(MODEL, tmp_path / "o", *flags_of(texts, str(half))) == 0
    made = content(tmp_path / "o")
    capsys.readouterr()
    assert quantize(MODEL, tmp_path / "o", *flags_of(texts, str(half))) == 0
    assert "is there already, made by the same command" in capsys.readouterr().err
    assert content(tmp_path / "o") == made
