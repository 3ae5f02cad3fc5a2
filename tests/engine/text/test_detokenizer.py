"""Text comes out token by token, whole, and never changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.tiny_text import write_tokenizer
from examples.families.tokenizers import byte_fallback_tokenizer
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


def _pieces(
    tokenizer: Tokenizer, ids: list[int], *, prompt: list[int] | None = None, skip_special_tokens: bool = True
) -> list[str]:
    detokenizer = make_detokenizer(tokenizer, prompt=prompt or [], skip_special_tokens=skip_special_tokens)
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


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return Tokenizer(Path(__file__).parents[3] / "examples" / "demo_model" / "model")


@given(data=st.data(), skip=st.booleans())
def test_any_tokens_of_the_demo_model_equal_the_librarys_decode(
    demo: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    few = st.sampled_from(data.draw(st.lists(st.integers(0, demo.largest_id), min_size=1, max_size=4)))
    ids = data.draw(st.lists(st.one_of(few, st.integers(0, demo.largest_id), st.integers(0, 300))))
    joined = "".join(_pieces(demo, ids, skip_special_tokens=skip))
    assert joined == demo.decode(ids, skip_special_tokens=skip)


@given(answers=st.lists(st.lists(st.integers(0, 319)), min_size=2, max_size=4), skip=st.booleans())
def test_outputs_at_a_time_do_not_meet(byte_level: Tokenizer, answers: list[list[int]], skip: bool) -> None:
    """What one output finds out about a token serves the others, whatever they are in the middle of."""
    detokenizers = [make_detokenizer(byte_level, skip_special_tokens=skip) for _ in answers]
    texts = [""] * len(answers)
    for position in range(max(map(len, answers))):
        for index, ids in enumerate(answers):
            if position < len(ids):
                texts[index] += detokenizers[index].add(ids[position])
    for index, ids in enumerate(answers):
        texts[index] += detokenizers[index].finish()
        assert texts[index] == byte_level.decode(ids, skip_special_tokens=skip)


@given(text=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd\u2581\x00")))
def test_byte_fallback_text_comes_back(byte_fallback: Tokenizer, text: str) -> None:
    ids = byte_fallback.encode(text)
    assert "".join(_pieces(byte_fallback, ids)) == byte_fallback.decode(ids)


def test_an_output_keeps_the_space_between_itself_and_the_prompt(byte_fallback: Tokenizer) -> None:
    ids = byte_fallback.encode("hello hello hello")
    assert "".join(_pieces(byte_fallback, ids)) == "hello hello hello", "the first space of a text is not its own"
    for cut in range(1, len(ids)):
        before = byte_fallback.decode(ids[:cut])
        assert before + "".join(_pieces(byte_fallback, ids[cut:], prompt=ids[:cut])) == "hello hello hello"
    begin = byte_fallback.special_tokens["eos_token"]
    bare = byte_fallback.encode(begin, add_special_tokens=False)[-1:]
    assert "".join(_pieces(byte_fallback, ids, prompt=bare)) == "hello hello hello", "a special token is no text"


def test_an_output_continues_a_prompt_of_byte_tokens(byte_fallback: Tokenizer) -> None:
    prompt = byte_fallback.encode("hello" + "\u4e2d" * 9)
    output_ids = byte_fallback.encode("\u6587\u4e2d", add_special_tokens=False)[1:]
    assert "".join(_pieces(byte_fallback, output_ids, prompt=prompt)) == "\u6587\u4e2d"


def test_skipped_tokens_do_not_pile_up(byte_fallback: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0
    decode = byte_fallback.decode

    def watched(ids: list[int], **options: bool) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids, **options)

    monkeypatch.setattr(byte_fallback, "decode", watched)
    end = byte_fallback.eos_token_id
    assert end is not None
    hello = byte_fallback.encode("hello")
    assert "".join(_pieces(byte_fallback, [*hello, *[end] * 100, *hello])) == "hello hello"
    assert longest < 20


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
