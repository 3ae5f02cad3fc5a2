"""The payload log: what is redacted, what bounds it, and that nobody waits for it."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.api.telemetry import payload_log
from blade_llm.api.telemetry.payload_log import REDACTED, PayloadLog, PayloadOptions, check_patterns


def opened(path: Path, **options: Any) -> PayloadLog:
    return PayloadLog(PayloadOptions(target=str(path), **options))


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefghijklmnop1234",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "ghp_0123456789abcdefghij",
        "AKIAIOSFODNN7EXAMPLE",
        "Bearer abcdefgh12345678",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
        "jane.doe+x@mail.example.com",
        "+49 (0)431 123 456-78",
        "4111 1111 1111 1111",
        "1234567890" * 5,
        "DE89370400440532013000"[2:],
    ],
)
def test_what_looks_like_a_secret_is_left_out(secret: str, tmp_path: Path) -> None:
    log = opened(tmp_path / "p")
    text = log.redact(f"before {secret} after")
    log.close()
    assert text == f"before {REDACTED} after"


@pytest.mark.parametrize("text", ["in 2026 there were 8 of 12,000", "f(x) = 3.14159", "sk- is short", "a@b", "1 2 3"])
def test_what_does_not_is_kept(text: str, tmp_path: Path) -> None:
    log = opened(tmp_path / "p")
    assert log.redact(text) == text
    log.close()


def test_expressions_of_ones_own_are_redacted_too(tmp_path: Path) -> None:
    log = opened(tmp_path / "p", patterns=(r"PROJ-\d+",))
    assert log.redact("see PROJ-17 of a@example.com") == f"see {REDACTED} of {REDACTED}"
    log.close()
    with pytest.raises(ValueError, match="is no regular expression"):
        check_patterns(["(a"])


def test_an_expression_that_takes_for_ever_takes_the_text_with_it(tmp_path: Path) -> None:
    class Slow:
        def sub(self, *arguments: object, timeout: float, concurrent: bool) -> str:
            assert concurrent, "others run meanwhile"
            raise TimeoutError

    log = opened(tmp_path / "p")
    log._patterns.append(Slow())
    assert log.redact("a text") == REDACTED
    log.close()


@given(st.text())
def test_whatever_a_text_is_a_record_is_one_line(text: str) -> None:
    lines: list[str] = []
    log = PayloadLog(PayloadOptions(target="stdout"))
    log._write = lines.append
    log.put({"request_id": "r"}, [text], [text, text])
    log.close()
    (line,) = lines
    assert len(line.splitlines()) == 1
    assert len(json.loads(line)["output"]) == 2


def test_records_and_files_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    log = opened(path, record_bytes=100, file_bytes=1_000)
    for number in range(60):
        log.put({"request_id": str(number)}, ["x" * 500], ["y" * 70, "z" * 70])
    log.close()
    assert log.dropped == 0
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["p.jsonl", *(f"p.jsonl.{number}" for number in range(1, 5))]
    assert all(file.stat().st_size <= 1_000 for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    last = records(path)[-1]
    assert last["request_id"] == "59"
    assert last["prompt"] == ["x" * 100 + "…"]
    assert last["output"] == ["y" * 70, "z" * 30 + "…"]


def test_a_disk_that_is_slow_costs_records_and_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_log, "MAX_PENDING", 4)
    log = opened(tmp_path / "p")
    go = threading.Event()
    written: list[str] = []

    def slow(line: str) -> None:
        go.wait(20)
        written.append(line)

    log._write = slow
    for _ in range(20):
        log.put({}, ["x"], ["y"])
    assert 15 <= log.dropped <= 16, "four wait, and one may be in the writer's hands"
    go.set()
    log.close()
    assert len(written) == 20 - log.dropped


@pytest.mark.parametrize("error", [OSError("no space"), ValueError("closed")])
def test_one_that_cannot_be_written_is_counted_and_said_once(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened(tmp_path / "p", file_bytes=1)

    def full(line: str) -> None:
        raise error

    write, log._write = log._write, full
    log.put({}, ["x"], ["y"])
    log.put({}, ["x"], ["y"])
    while log._queue.qsize() or log.dropped < 2:
        time.sleep(0.001)
    log._write = write
    log.put({}, ["x"], ["z"])
    log.close()
    assert log.dropped == 2
    assert [record.message for record in caplog.records] == [
        f"the payload log cannot be written: {error}; records are dropped until it can"
    ]
    assert records(tmp_path / "p")[0]["output"] == ["z"]


def test_nobody_else_can_read_it_or_say_where_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.touch(0o644)
    opened(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="it is a symbolic link"):
        opened(tmp_path / "link")
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="it is no regular file"):
        opened(tmp_path / "fifo")
    os.close(reader)


def test_a_file_that_others_have_moved_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "p"
    log = opened(path)
    write = log._write
    write("1")
    path.rename(tmp_path / "moved")
    write("2")
    path.unlink()
    write("3")
    log.close()
    assert ((tmp_path / "moved").read_text(), path.read_text()) == ("1\n", "3\n")


def test_its_file_is_never_open_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opens it in that moment reads all that comes."""
    monkeypatch.setattr(os, "fchmod", lambda descriptor, mode: None)
    before = os.umask(0)
    try:
        log = opened(tmp_path / "p", file_bytes=1)
        for _ in range(2):
            log.put({}, ["x"], ["y"])
        log.close()
    finally:
        os.umask(before)
    assert (tmp_path / "p.1").exists()
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_only_a_share_is_logged(tmp_path: Path) -> None:
    log = opened(tmp_path / "p", sampling=0.2)
    assert 100 < sum(log.wants() for _ in range(1000)) < 300
    log.close()
    none = opened(tmp_path / "q", sampling=0.0)
    assert not any(none.wants() for _ in range(100))
    none.close()


def test_each_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    log = PayloadLog(PayloadOptions(target=str(tmp_path / "p.jsonl")), index=2)
    log.put({}, ["x"], ["y"])
    log.close()
    assert records(tmp_path / "p-2.jsonl")[0]["output"] == ["y"]
