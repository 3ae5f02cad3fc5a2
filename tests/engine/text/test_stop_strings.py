"""Stop strings end the text, wherever tokens are cut, and no beginning of one leaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.tiny_text import write_tokenizer
from hypothesis import example, given
from hypothesis import strategies as st

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.text.output_text import OutputText
from blade_llm.text.stop_strings import StopStrings
from blade_llm.text.tokenizer import Tokenizer

_short = st.text("ab", min_size=1, max_size=4)


def _run(pieces: list[str], stop: tuple[str, ...], *, include: bool = False) -> tuple[list[str], str | None]:
    watch = StopStrings(stop, include=include)
    given_out = [watch.add(piece) for piece in pieces]
    return [*given_out, watch.finish()], watch.matched


def _expected(text: str, stop: tuple[str, ...]) -> tuple[str, str | None]:
    """By definition: the shortest prefix that ends in a stop string, without the longest such string."""
    for end in range(1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(pieces=st.lists(st.text("abc", max_size=5)), stop=st.lists(_short, min_size=1, max_size=3))
@example(pieces=["abc"], stop=["abc", "b"])
@example(pieces=["aab"], stop=["ab", "b"])
@example(pieces=["aa", "baa"], stop=["abaa"])
def test_the_outcome_does_not_depend_on_the_pieces(pieces: list[str], stop: list[str]) -> None:
    given_out, matched = _run(pieces, tuple(stop))
    assert ("".join(given_out), matched) == _expected("".join(pieces), tuple(stop))


@given(text=st.text("abc"), stop=st.lists(_short, min_size=1, max_size=3))
def test_nothing_given_out_is_taken_back(text: str, stop: list[str]) -> None:
    watch, seen, final = StopStrings(tuple(stop)), "", _expected(text, tuple(stop))[0]
    for character in text:
        seen += watch.add(character)
        assert final.startswith(seen)


def test_the_stop_string_is_kept_on_request() -> None:
    assert _run(["on", "e ST", "OP two"], ("STOP",), include=True) == (["on", "e ", "STOP", ""], "STOP")


def test_a_possible_beginning_is_held_and_released() -> None:
    assert _run(["a\n", "\nb"], ("\n\nUser",)) == (["a", "\n\nb", ""], None)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def test_a_stop_string_across_tokens(tokenizer: Tokenizer) -> None:
    output = OutputText(tokenizer, [], SamplingParams(stop=("o w",)))
    pieces = []
    for token_id in tokenizer.encode("hello world"):
        pieces.append(output.add(token_id))
        if output.stopped:
            break
    assert "".join(pieces) == "hell"
    assert output.stop_string == "o w"
    assert output.finish() == ""


def test_stop_strings_count_from_min_tokens_on(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("qxqxqx")
    output = OutputText(tokenizer, [], SamplingParams(stop=("x",), min_tokens=3, max_tokens=9))
    text = "".join(output.add(token_id) for token_id in ids)
    assert text == "qxq"


def test_tokenizer_folder_without_files_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--tokenizer_dir"):
        Tokenizer(tmp_path)
