"""Random token sequences, added and special tokens among them, come out as the library decodes them, piece by piece."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.tiny_text import byte_level_tokenizer, write_tokenizer
from examples.families.tokenizers import byte_fallback_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.text.detokenizer import make_detokenizer
from blade_llm.text.output_text import OutputText
from blade_llm.text.tokenizer import Tokenizer

ADDED = ("<tool_call>", " spaced ", "\u4e2d\u6587", "caf\u00e9", "\U0001f680", "a\nb")
MARKS = ("<|a|>", "<|b|>")
CHARACTERS = ("\u00e9", "\u4e2d", "\U0001f600", "\u0301", "\u200d", "x", " ", "\n")


def _with_added(folder: Path, backend: object) -> Tokenizer:
    backend.add_tokens([AddedToken(token, normalized=False) for token in ADDED])  # type: ignore[attr-defined]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in MARKS])  # type: ignore[attr-defined]
    return Tokenizer(write_tokenizer(folder, backend))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return _with_added(tmp_path_factory.mktemp("byte_level"), byte_level_tokenizer())


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return _with_added(tmp_path_factory.mktemp("byte_fallback"), byte_fallback_tokenizer())


def _joined(tokenizer: Tokenizer, ids: list[int], *, skip: bool) -> str:
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=skip)
    return "".join([*(detokenizer.add(token_id) for token_id in ids), detokenizer.finish()])


@given(data=st.data(), skip=st.booleans())
def test_byte_level(byte_level: Tokenizer, data: st.DataObject, skip: bool) -> None:
    """Any tokens at all: bytes that are no characters, added tokens in the middle of one, ids without a token."""
    added = [byte_level.token_id(token) for token in (*ADDED, *MARKS)]
    some = st.one_of(st.sampled_from(added), st.integers(0, byte_level.largest_id + 3))
    ids = data.draw(st.lists(some, max_size=30))
    assert _joined(byte_level, ids, skip=skip) == byte_level.decode(ids, skip_special_tokens=skip)


@given(data=st.data(), skip=st.booleans())
def test_byte_fallback(byte_fallback: Tokenizer, data: st.DataObject, skip: bool) -> None:
    """Words, characters in bytes, added and special tokens, in any order. (A run with bytes that are no character is
    another matter: the library then gives up the whole run, good characters included, which a stream cannot take back.)
    """
    marks = {byte_fallback.token_id(mark) for mark in (*MARKS, "<unk>", "<s>", "</s>")}
    words = [token for token in range(259, byte_fallback.largest_id + 1) if token not in marks]
    pieces = st.one_of(
        st.sampled_from(words).map(lambda token: [token]),
        st.sampled_from(sorted(token for token in marks if token is not None)).map(lambda token: [token]),
        st.sampled_from(CHARACTERS).map(lambda text: [3 + byte for byte in text.encode()]),
    )
    ids = [token for piece in data.draw(st.lists(pieces, max_size=20)) for token in piece]
    assert _joined(byte_fallback, ids, skip=skip) == byte_fallback.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@given(data=st.data())
def test_stop_strings_never_leak(kind: str, request: pytest.FixtureRequest, data: st.DataObject) -> None:
    """Whatever the tokens: what was given out at any time is a beginning of the final text, which ends where the first
    stop string begins."""
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.largest_id), min_size=1, max_size=20))
    text = _joined(tokenizer, ids, skip=True)
    cuts = st.tuples(st.integers(0, len(text)), st.integers(1, 4)).map(lambda cut: text[cut[0] : cut[0] + cut[1]])
    stop = [each for each in data.draw(st.lists(cuts, max_size=3)) if each] or ["zz"]
    answer = OutputText(tokenizer, [], SamplingParams(stop=tuple(stop), max_tokens=100))
    seen = ""
    beginnings = []
    for token_id in ids:
        seen += answer.add(token_id)
        beginnings.append(seen)
        if answer.stopped:
            break
    final = seen + answer.finish()
    assert text.startswith(final)
    assert all(final.startswith(each) for each in beginnings)
    assert not any(each in final for each in stop)
    assert answer.stopped == any(each in text for each in stop)
