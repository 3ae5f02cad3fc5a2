"""Texts to calibrate with: which are read and how much of them is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blade_llm.models.errors import ModelFilesError
from blade_llm.quantize.calibration.samples import Samples, batches_of, make_samples
from blade_llm.quantize.calibration.texts import given_texts, read_texts


def written(folder: Path, *lines: str) -> Path:
    file = folder / "texts.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def test_what_is_read(tmp_path: Path) -> None:
    lines = (
        json.dumps({"text": "one", "id": 1}),
        "",
        json.dumps({"text": "  "}),
        json.dumps({"content": [{"text": "two"}, {"text": "three"}]}),
        json.dumps({"content": "four"}),
    )
    assert read_texts(written(tmp_path, *lines)) == ["one", "two\nthree", "four"]
    assert given_texts(["a", " ", "b"]) == ["a", "b"]


def test_line_ends_are_those_of_the_file(tmp_path: Path) -> None:
    """Strings may have U+2028, U+2029 and U+0085 as they are, and Windows writes a mark and CRLF."""
    texts = ["a\u2028b", "c\u2029d", "e\u0085f"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    file = tmp_path / "texts.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert read_texts(file) == texts


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "answer": "b"}', "line 2: it has 'prompt', 'answer'; \"text\" is what is read"),
        ("{}", 'line 2: it has nothing; "text" is what is read'),
        ('["a"]', 'line 2: not an object; write {"text": "…"}'),
        ("plain text", "line 2: not JSON (Expecting value"),
        ('{"text": ["a"]}', 'line 2: "text" is no text but ["a"]'),
        (
            '{"content": [{"image": "https://x/y.png"}, {"text": "a"}]}',
            "line 2: its \"content\" has 'image': models that see or hear cannot be quantised here yet",
        ),
        ('{"content": [{"txt": "a"}]}', 'line 2: a part of its "content" has no "text"'),
        (r'{"text": "a \ud800 b"}', "line 2: it has half of a pair of UTF-16 surrogates"),
        ('{"content": 5}', 'line 2: "content" is no list of objects like {"text": "…"}'),
    ],
)
def test_what_is_refused_names_the_line(tmp_path: Path, line: str, message: str) -> None:
    file = written(tmp_path, json.dumps({"text": "good"}), line)
    with pytest.raises(ModelFilesError) as caught:
        read_texts(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("lines", [(), ("", '{"text": ""}')])
def test_no_texts(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(ModelFilesError, match=r'has no texts; write lines like \{"text": "…"\}, 100 to 1,000'):
        read_texts(written(tmp_path, *lines))
    with pytest.raises(ModelFilesError, match="--calib_data is empty"):
        given_texts(["", " "])


def test_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b'{"text": "\xff"}')
    with pytest.raises(ModelFilesError, match="not UTF-8 text"):
        read_texts(tmp_path / "x")
    with pytest.raises(ModelFilesError, match="--calib_data is not UTF-8 text"):
        given_texts(["good", b"\xff".decode(errors="surrogateescape")])


def samples_of(texts: list[str], most: int = 100, length: int = 100) -> Samples:
    return make_samples(texts, lambda text: list(map(ord, text)), most=most, length=length, vocab_size=256)


def test_bounds_are_kept_and_said() -> None:
    found = samples_of([chr(97 + index) * (1 + index) for index in range(20)], most=10, length=9)
    assert len(found.token_ids) == 10
    assert [int(ids[0]) - 97 for ids in found.token_ids] == [0, 2, 4, 6, 8, 10, 12, 16, 18, 14]
    assert max(map(len, found.token_ids)) == 9
    assert found.notes == (
        "10 of 20 texts are used, evenly spread; --calib_samples takes more",
        "5 of 10 texts are cut after 9 tokens; --calib_length takes more",
    )


def test_few_texts() -> None:
    one = samples_of(["hello world!"])
    assert one.notes == ("one calibration text is little: give 100 to 1,000 like those that the model will see",)
    assert one.judges == one.calibrating == range(1)
    few = samples_of(["a", "b"])
    assert few.notes == ("2 calibration texts are few: none is held out, so perplexity is that of them all",)


def test_some_are_held_out() -> None:
    found = samples_of([chr(97 + index % 26) for index in range(200)], most=200)
    assert found.held_out == 16
    assert found.calibrating == range(184)
    assert found.judges == range(184, 200)
    assert found.tokens == 184
    assert samples_of(["a"] * 8).held_out == 1


def test_tokens_that_cannot_be() -> None:
    with pytest.raises(ModelFilesError, match="the calibration texts have no tokens"):
        make_samples(["a"], lambda text: [], most=1, length=1, vocab_size=9)
    with pytest.raises(ModelFilesError, match="the tokenizer has token id 300, the model only 256 ids"):
        make_samples(["a"], lambda text: [300], most=1, length=1, vocab_size=256)


def test_batches_hold_whole_samples() -> None:
    found = samples_of(["a" * 900, "b" * 900, "c" * 900, "d" * 2100, "e"], length=5000)
    batches = batches_of(found, range(5))
    assert [batch.samples for batch in batches] == [range(2), range(2, 3), range(3, 4), range(4, 5)]
    assert [batch.rows for batch in batches] == [
        slice(0, 1800), slice(1800, 2700), slice(2700, 4800), slice(4800, 4801)
    ]  # fmt: skip
    assert batches_of(found, range(2, 3))[0].rows == slice(1800, 2700)
    assert found.digest != samples_of(["a" * 900, "b" * 900, "c" * 900, "d" * 2100, "f"], length=5000).digest
