"""Lines of JSON: whatever a message says, it stays one line, and one object."""

import io
import json
import logging
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_telemetry.logs import JsonFormatter, configure, json_line, request_fields


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, and afterwards its level as before. Tests remove its handlers: pytest sets some for each."""
    logger = logging.getLogger()
    level = logger.level
    yield logger
    logger.setLevel(level)


def formatted(message: str, *arguments: object, **extra: Any) -> str:
    record = logging.getLogger("test").makeRecord(
        "test", logging.WARNING, "f", 1, message, arguments, None, extra=extra
    )
    return JsonFormatter({"worker": 2}).format(record)


@given(st.text())
def test_no_text_breaks_out_of_its_line(text: str) -> None:
    line = formatted("said %s", text, model=text)
    assert len(line.splitlines()) == 1, "by any reader's idea of a line"
    assert not any(unicodedata.category(character) == "Cc" for character in line)
    assert json.loads(line)["message"] == f"said {text}"


def test_a_forged_line_stays_in_its_message() -> None:
    forged = 'x"}\r\n{"level":"ERROR","message":"root logged in"}\x1b[2J\u2028\x85\x00'
    (line,) = formatted("model %s", forged).splitlines()
    assert json.loads(line) | {"time": ""} == {
        "time": "",
        "level": "WARNING",
        "logger": "test",
        "message": f"model {forged}",
        "worker": 2,
    }
    assert "\x1b" not in line


def test_a_line_says_which_request_it_is_about() -> None:
    token = request_fields.set({"request_id": "req-1", "trace_id": "ab"})
    try:
        line = json.loads(formatted("x", endpoint="a", status=502, key=""))
    finally:
        request_fields.reset(token)
    assert (line["request_id"], line["trace_id"], line["endpoint"], line["status"]) == ("req-1", "ab", "a", 502)
    assert "key" not in line, "what is not known is left out"
    assert "request_id" not in json.loads(formatted("x"))
    token = request_fields.set({"request_id": "req-1", "trace_id": ""})
    try:
        assert "trace_id" not in json.loads(formatted("x"))
    finally:
        request_fields.reset(token)


def test_an_exception_is_part_of_its_line(root: logging.Logger) -> None:
    stream = io.StringIO()
    root.handlers.clear()
    configure("INFO", "json", stream=stream)
    try:
        raise ValueError("wrong\nin two lines")
    except ValueError:
        logging.getLogger("test").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "wrong\nin two lines" in json.loads(line)["exception"]


def test_text_is_text(root: logging.Logger) -> None:
    stream = io.StringIO()
    root.handlers.clear()
    configure("INFO", "text", stream=stream)
    logging.getLogger("test").info("hello")
    assert stream.getvalue().endswith("INFO test: hello\n")
    root.handlers.clear()
    configure("INFO", "text")
    assert root.handlers[0].stream is sys.stderr  # type: ignore[attr-defined]


def test_values_that_json_does_not_know_are_written_as_text() -> None:
    assert json.loads(json_line({"a": ValueError("x"), "b": b"\xff"}))["a"] == "x"
    assert json.loads(json_line({"a": "no \udcff UTF-8"})) == {"a": "no \udcff UTF-8"}
