"""``blade_llm_check`` as its users see it: lines, columns, exit codes, and the JSON for the operator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hub_support.tiny_model import make_model

from blade_llm.check import items
from blade_llm.check.items import parse_items
from blade_llm.check.report import encode_report, format_item, summarize
from blade_llm.cli import check
from blade_protocol.check import CheckItem, CheckReport

ENVIRONMENT = ("check_shm", "check_pb_env", "check_flops_diff")


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "termination-log"
    monkeypatch.setenv("BLADE_TERMINATION_LOG", str(path))
    monkeypatch.delenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", raising=False)
    return path


def item(status: str = "PASS", detail: str = "fine", name: str = "check_shm") -> CheckItem:
    return CheckItem(name=name, status=status, detail=detail)  # type: ignore[arg-type]


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the three environment items report; no measuring."""
    chosen = dict.fromkeys(ENVIRONMENT, "PASS")
    for name in ENVIRONMENT:
        monkeypatch.setattr(items, name, lambda name=name: item(chosen[name], name=name))
    return chosen


def test_the_whole_command_prints_the_documented_layout(log: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "blade_llm.cli.check"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = ran.stdout.split("\n")
    assert re.fullmatch(r"       check_shm       PASS  -  shared Memory is \d+ bytes", lines[0])
    assert lines[1] == ("    check_pb_env       PASS  -  Env var PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=None is OK")
    assert lines[2] == "check_flops_diff       PASS  -  max flops diff amoung 1 devices is 1.00"
    assert lines[3:] == ["", "PASS 3, WARNING 0, FAILED 0", ""]
    report = msgspec.json.decode(log.read_bytes(), type=CheckReport)
    assert [entry.name for entry in report.items] == list(ENVIRONMENT)
    assert (report.passed, report.warnings, report.failed) == (3, 0, 0)


@pytest.mark.parametrize("status", ["PASS", "WARNING", "FAILED"])
@pytest.mark.parametrize("name", [*ENVIRONMENT, "check_model", "check_memory_fit"])
def test_columns(name: str, status: str) -> None:
    line = format_item(item(status, "the detail", name))
    assert line[:16] == name.rjust(16)
    assert line[16:27] == status.rjust(11)
    assert line[27:] == "  -  the detail"


def test_a_detail_stays_on_its_line() -> None:
    assert format_item(item(detail="one\ntwo\r\n  three\n")).endswith("  -  one two three")


@pytest.mark.parametrize(
    ("worst", "mode", "code"),
    [
        ("PASS", "enforce", 0),
        ("WARNING", "enforce", 1),
        ("FAILED", "enforce", 1),
        ("PASS", "warn", 0),
        ("WARNING", "warn", 0),
        ("FAILED", "warn", 1),
    ],
)
def test_exit_codes(
    statuses: dict[str, str], worst: str, mode: str, code: int, capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    statuses["check_pb_env"] = worst
    assert check.main(["--mode", mode]) == code
    totals = {"PASS": 2, "WARNING": 0, "FAILED": 0}
    totals[worst] += 1
    assert capsys.readouterr().out.endswith(
        f"\n\nPASS {totals['PASS']}, WARNING {totals['WARNING']}, FAILED {totals['FAILED']}\n"
    )
    assert json.loads(log.read_bytes())["failed"] == totals["FAILED"]


def test_enforce_is_the_default(statuses: dict[str, str]) -> None:
    statuses["check_shm"] = "WARNING"
    assert check.main([]) == 1


def test_an_item_that_breaks_is_a_failed_item(
    monkeypatch: pytest.MonkeyPatch, statuses: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> CheckItem:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(items, "check_pb_env", broken)
    assert check.main([]) == 1
    assert "    check_pb_env     FAILED  -  ZeroDivisionError: by nothing\n" in capsys.readouterr().out


def test_items_by_full_and_short_name_in_the_order_given(statuses: dict[str, str], capsys) -> None:
    assert check.main(["--items", "pbEnv,check_shm,SHM"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["check_pb_env", "check_shm"]
    assert lines[2:] == ["", "PASS 2, WARNING 0, FAILED 0"]
    assert parse_items("shm, pbEnv,flopsDiff,memoryFit,model") == (*ENVIRONMENT, "check_memory_fit", "check_model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--items", "check_shn"], "unknown item 'check_shn'; did you mean 'check_shm'?"),
        (["--items", "memoryfits"], "did you mean 'check_memory_fit'?"),
        (["--items", "zzz"], "unknown item 'zzz'; known are check_shm, check_pb_env"),
        (["--items", ","], "no item is named"),
        (["--items", "model"], "check_model needs --model DIR"),
        (["--mod", "warn"], "unknown flag --mod; did you mean --mode?"),
        (["--kv_cache_bytes", "much"], "'much' is no size"),
        (["--mode", "loose"], "invalid choice: 'loose'"),
    ],
)
def test_wrong_flags_exit_2_and_name_the_right_one(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        check.main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_help_lists_the_items(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "check_memory_fit (memoryFit), check_model (model)" in text
    assert "Exit status: 0 when all items pass" in text


def test_model_adds_its_two_items(
    statuses: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    model = make_model(tmp_path / "model")
    assert check.main(["--model", str(model)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].startswith("check_memory_fit       PASS  -  float32: weights ")
    assert lines[4].startswith("     check_model       PASS  -  Qwen2ForCausalLM, 2 layers, 26 tensors, ")
    assert [entry["name"] for entry in json.loads(log.read_bytes())["items"]][3:] == ["check_memory_fit", "check_model"]


def test_a_base_model_does_not_stop_a_service_that_enforces(statuses: dict[str, str], tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    (model / "tokenizer_config.json").unlink()  # and the chat template with it
    assert check.main(["--model", str(model), "--mode", "enforce"]) == 0


def test_a_missing_model_fails_both_items(statuses: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--model", "/no/such"]) == 1
    lines = capsys.readouterr().out.splitlines()
    for line, name in zip(lines[3:5], ("check_memory_fit", "check_model"), strict=True):
        assert line.startswith(f"{name:>16}     FAILED  -  model folder /no/such does not exist")
    assert lines[-1] == "PASS 3, WARNING 0, FAILED 2"


@pytest.mark.parametrize("character", ["x", "\n", '"', "\N{SNOWMAN}", "\x01"])
@pytest.mark.parametrize("length", [700, 4096, 300_000])
def test_the_json_fits_the_termination_log(character: str, length: int) -> None:
    found = [item("FAILED", character * length, name) for name in (*ENVIRONMENT, "check_memory_fit", "check_model")]
    found[1] = item("PASS", "short and whole", "check_pb_env")
    data = encode_report(summarize(found), 4096)
    assert len(data) <= 4096
    report = msgspec.json.decode(data, type=CheckReport)
    assert (report.passed, report.failed) == (1, 4)
    assert [(entry.name, entry.status) for entry in report.items] == [(entry.name, entry.status) for entry in found]
    assert report.items[1].detail == "short and whole"
    if len(msgspec.json.encode(summarize(found))) > 4096:
        assert report.items[0].detail.endswith("...")
        assert len(data) > 3900  # no more than needed is cut


def test_a_report_that_fits_is_whole() -> None:
    found = [item(detail="d" * 500), item("WARNING", "w" * 2000)]
    assert msgspec.json.decode(encode_report(summarize(found), 4096), type=CheckReport).items == tuple(found)


def test_a_termination_log_that_cannot_be_written_changes_nothing(
    statuses: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BLADE_TERMINATION_LOG", "/no/such/folder/log")
    assert check.main([]) == 0
    assert "cannot write the termination log /no/such/folder/log" in capsys.readouterr().err
