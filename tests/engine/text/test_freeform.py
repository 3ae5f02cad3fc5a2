"""The text of freeform tools is the same however the model's output is cut into pieces."""

from __future__ import annotations

import json

import pytest

from blade_llm.text.tool_parsers.freeform import FreeformText

TEXTS = [
    "",
    "plain",
    '*** Begin Patch\n+print("a\\n")\n*** End Patch',
    "\u2600 \U0001f600 \u00e4",
    "a\\",
    '"',
    "\x00\x1f\x7f/",
]


def _read(pieces: list[str]) -> str:
    text = FreeformText()
    return "".join(text.add(piece) for piece in pieces) + text.finish()


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_in_any_pieces(text: str, ascii_only: bool) -> None:
    written = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert _read([written]) == text
    assert _read(list(written)) == text
    for size in (2, 3, 5, 7):
        assert _read([written[i : i + size] for i in range(0, len(written), size)]) == text


def test_it_is_given_out_as_it_comes() -> None:
    text = FreeformText()
    assert [text.add(piece) for piece in ('{"inp', 'ut" : "ab', "c\\", "nd", '"}')] == ["", "ab", "c", "\nd", ""]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('{"patch": "a\\nb"}', "a\nb"),
        ('"a\\nb"', "a\nb"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"a": "x", "b": "y"}', '{"a": "x", "b": "y"}'),
        ('{"input": ["a"]}', '{"input": ["a"]}'),
        ("not json", "not json"),
        ("{}", "{}"),
    ],
)
def test_arguments_of_another_shape(written: str, text: str) -> None:
    assert _read([written]) == _read(list(written)) == text


def test_half_a_character_is_replaced() -> None:
    for written in ('{"input": "a\\ud83d"}', '{"input": "a\\ud83d\\n"}'):
        read = _read(list(written))
        assert read.startswith("a\ufffd")
        assert read.encode()


def test_what_was_cut_is_a_prefix() -> None:
    written = json.dumps({"input": 'say "hello"\n'})
    for end in range(len(written)):
        assert 'say "hello"\n'.startswith(_read(list(written[:end])))
