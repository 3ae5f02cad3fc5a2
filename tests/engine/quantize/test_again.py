"""The command given again when its work is done, as Kubernetes gives a Job's, and what it leaves as a last word."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
import torch
from engine_support.quantize_runs import BLOCKS, SIZES, content, quantize
from engine_support.tiny_models import save_model

from blade_llm.hub.locking import locked
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.output import OutputFolder
from blade_llm.quantize.run import prepare, quantize_model
from blade_protocol.environment import TERMINATION_LOG

OPTIONS = QuantizeOptions(bits=4, group_size=32)
"""Those of ``BLOCKS``."""
_NOT_EMPTY = "is not empty; delete it or give another --output_dir"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    save_model(folder, "llama", torch.bfloat16, **SIZES)
    return folder


@pytest.mark.parametrize("mounted", [False, True])
def test_the_same_command_finds_its_work_done(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mounted: bool
) -> None:
    output = tmp_path / "small"
    if mounted:
        output.mkdir()
    assert quantize(model, output, *BLOCKS) == 0
    made, nodes = content(output), {file: file.stat().st_ino for file in output.rglob("*")}
    capsys.readouterr()
    assert quantize(model, output, *BLOCKS) == 0
    said = capsys.readouterr()
    assert said.out == f"{output}\n"
    assert "is there already, made by the same command" in said.err
    assert content(output) == made
    assert {file: file.stat().st_ino for file in output.rglob("*")} == nodes
    assert not [file for file in tmp_path.rglob("*") if file.name.endswith(".staging")]


@pytest.mark.parametrize("mounted", [False, True])
def test_a_run_that_waited_finds_its_work_done(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mounted: bool
) -> None:
    """By the one that it waited for: as when Kubernetes replaces a pod whose node it lost sight of."""
    output = tmp_path / "small"
    if mounted:
        output.mkdir()
    codes: list[int] = []
    second = threading.Thread(target=lambda: codes.append(quantize(model, output, *BLOCKS)))
    with locked(OutputFolder.at(output).lock):
        second.start()
        seen = ""
        while "waiting" not in seen and second.is_alive():
            second.join(0.05)
            seen += capsys.readouterr().err
        job = prepare(model, OPTIONS, model=str(model), max_shard_bytes=5 * 10**9)
        quantize_model(job, OutputFolder.at(output), lambda total: lambda name, nbytes: None)
        made = content(output)
    second.join()
    assert codes == [0]
    assert "is there already, made by the same command" in capsys.readouterr().err
    assert content(output) == made


@pytest.mark.parametrize("damage", ["flags", "weights", "report", "config"])
def test_what_is_not_the_same_work_is_not_taken_for_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    output = tmp_path / "small"
    assert quantize(model, output, *BLOCKS) == 0
    if damage == "weights":
        file = next(output.glob("*.safetensors"))
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "report":
        (output / "quantization_report.json").write_text("{}")
    elif damage == "config":
        (output / "config.json").unlink()
    assert quantize(model, output, *(() if damage == "flags" else BLOCKS)) == 1
    assert _NOT_EMPTY in capsys.readouterr().err


def test_the_last_word_says_what_was_saved(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word = tmp_path / "word"
    monkeypatch.setenv(TERMINATION_LOG, str(word))
    for _ in range(2):
        word.write_text("")
        assert quantize(model, tmp_path / "small", *BLOCKS) == 0
        assert re.fullmatch(r"[\d.]+ MB → [\d.]+ MB, [\d.]+ bits a quantised weight", word.read_text())
