"""Text comes out token by token, whole, and never changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.tiny_text import byte_fallback_tokenizer, write_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.text.detokenizer import make_detokenizer
from blade_llm.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_tokenizer(tmp_path_factory.mktemp("byte_level")))


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("byte_fallback")
    return Tokenizer(write_tokenizer(folder, byte_fallback_tokenizer(), eos_token="</s>"))


def _pieces(tokenizer: Tokenizer, ids: list[int], *, skip_special_tokens: bool = True) -> list[str]:
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.add(token_id) for token_id in ids), detokenizer.finish()]


@given(text=st.text())
def test_byte_level_text_comes_back(byte_level: Tokenizer, text: str) -> None:
    pieces = _pieces(byte_level, byte_level.encode(text))
    assert "".join(pieces) == text
    assert pieces[-1] == "", "whole characters need no finish"


@given(ids=st.lists(st.integers(0, 319)), skip=st.booleans())
def test_any_byte_level_tokens_equal_the_librarys_decode(byte_level: Tokenizer, ids: list[int], skip: bool) -> None:
    joined = "".join(_pieces(byte_level, ids, skip_special_tokens=skip))
    assert joined == byte_level.decode(ids, skip_special_tokens=skip)


@given(text=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd\u2581\x00")))
def test_byte_fallback_text_comes_back(byte_fallback: Tokenizer, text: str) -> None:
    ids = byte_fallback.encode(text)
    assert "".join(_pieces(byte_fallback, ids)) == byte_fallback.decode(ids)


def test_no_piece_ends_inside_a_character(byte_level: Tokenizer) -> None:
    text = "a\u00e9\u4e2d\U0001f600" * 3
    seen = ""
    for piece in _pieces(byte_level, byte_level.encode(text)):
        seen += piece
        assert text.startswith(seen)


def test_a_cut_character_becomes_a_replacement_at_the_end(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("\U0001f680")  # not in the training text: four byte tokens
    assert _pieces(byte_level, ids[:2]) == ["", "", "\ufffd"]


def test_fallback_tokens_that_never_make_a_character_are_not_held_for_ever(byte_fallback: Tokenizer) -> None:
    first_continuation_byte = 3 + 0x80
    pieces = _pieces(byte_fallback, [first_continuation_byte] * 50)
    assert any(pieces[:-1])


def test_special_tokens_are_left_out_or_shown(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("hello<|im_end|>there")
    assert "".join(_pieces(byte_level, ids)) == "hellothere"
    assert "".join(_pieces(byte_level, ids, skip_special_tokens=False)) == "hello<|im_end|>there"


def test_token_bytes_join_to_the_text(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    text = "hello \u4e2d\U0001f680"
    assert b"".join(map(byte_level.token_bytes, byte_level.encode(text))).decode() == text
    assert b"".join(map(byte_fallback.token_bytes, byte_fallback.encode(text))).decode() == " " + text


def test_ids_beyond_the_vocabulary_are_no_text(byte_level: Tokenizer, tmp_path: Path) -> None:
    assert _pieces(byte_level, [100_000]) == ["", ""]
    assert byte_level.token_bytes(100_000) == b""
