"""Texts to calibrate with: which are read and how much of them is used."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from blade_llm.models.errors import ModelFilesError
from blade_llm.offline_images import TokenPrompt
from blade_llm.quantize.calibration.samples import Samples, batches_of, make_samples
from blade_llm.quantize.calibration.texts import IllustratedText, given_texts, read_texts
from blade_llm.spec.vision.images import ImagePixels, ImageSpan


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


def test_images(tmp_path: Path) -> None:
    """Paths are those of files in the folder."""
    images = [
        "a b.png",
        "sub/c.png",
        str(tmp_path / "d.png"),
        "https://x/e.png",
        "FILE:///f.png",
        "data:image/png;base64,",
    ]
    content = [{"text": "see"}, *({"image": each} for each in images), {"text": "and"}]
    file = written(tmp_path, json.dumps({"text": "one"}), json.dumps({"content": content}))
    one, two = read_texts(file)
    assert one == "one"
    assert isinstance(two, IllustratedText)
    here = tmp_path.as_uri()
    urls = [f"{here}/a%20b.png", f"{here}/sub/c.png", f"{here}/d.png", *images[3:]]
    assert two.parts == (("text", "see"), *(("image", url) for url in urls), ("text", "and"))
    assert two.folder == tmp_path
    assert two.where == f"--calib_data_file {file}, line 2"


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
            '{"content": [{"text": "a"}, {"audio": "https://x/y.wav"}]}',
            'line 2: its "content" has \'audio\'; give {"text": "…"} and {"image": "URL or path"}',
        ),
        ('{"content": [{"image_url": {"url": "a"}}]}', "line 2: its \"content\" has 'image_url'; give"),
        ('{"content": [{"image": 5}]}', 'line 2: a part of its "content" has an "image" that is no URL and no path'),
        ('{"content": [{"image": ""}]}', 'line 2: a part of its "content" has an "image" that is no URL and no path'),
        ('{"content": [{"image": "a", "text": "b"}]}', 'or a "text" beside it'),
        (r'{"content": [{"image": "a\ud800"}]}', "line 2: it has half of a pair of UTF-16 surrogates"),
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
    """A token a character."""

    def encode(some: Sequence[str]) -> list[TokenPrompt]:
        return [TokenPrompt(text, list(map(ord, text))) for text in some]

    return make_samples(texts, encode, most=most, length=length, max_positions=5000, vocab_size=256)


def prompt_of(shape: str) -> TokenPrompt:
    """A token a character; each run of the same capitals is an image."""
    prompt = TokenPrompt(shape, list(map(ord, shape)))
    for found in re.finditer(r"([A-Z])\1*", shape):
        digest = found[1].encode() * 32
        prompt.images.append(ImageSpan(found.start(), len(found[0]), digest, (1, 1, len(found[0]))))
        prompt.pixels.append(ImagePixels(digest, (1, 1, len(found[0])), (1, 1, 1, 3), b"abc"))
    return prompt


@pytest.mark.parametrize(
    ("shape", "length", "positions", "kept"),
    [
        ("abAAAAcdBBef", 5, 99, "abAAAAcdBBe"),
        ("abAAAAcdBBef", 4, 99, "abAAAAcd"),
        ("abAAAAcdBBef", 3, 99, "abAAAAc"),
        ("abAAAAcdBBef", 2, 99, "ab"),
        ("AAAAcd", 1, 99, "AAAAc"),
        ("abAAAAcdBBef", 9, 9, "abAAAAcd"),
        ("abAAAAcdBBef", 9, 5, "ab"),
        ("abAAAAcdBBef", 9, 11, "abAAAAcdBBe"),
        ("abcdef", 9, 4, "abcd"),
    ],
)
def test_images_stay_whole_and_are_not_counted(shape: str, length: int, positions: int, kept: str) -> None:
    found = make_samples(
        [shape], lambda some: list(map(prompt_of, some)), most=1, length=length, max_positions=positions, vocab_size=256
    )
    assert "".join(map(chr, found.token_ids[0].tolist())) == kept
    assert found.is_text(0).tolist() == [each.islower() for each in kept]
    assert {digest[:1].decode() for digest in found.pixels} == {each for each in kept if each.isupper()}
    if found.images:
        assert [image.start for image in found.images[0]] == [each.start() for each in re.finditer(r"([A-Z])\1*", kept)]
    else:
        assert kept.islower()


def test_images_stay_with_their_samples() -> None:
    """Also where samples are held out, and another image is another sample."""
    shapes = [f"a{chr(65 + index) * 2}b" for index in range(8)]

    def samples(shapes: list[str]) -> Samples:
        return make_samples(
            shapes, lambda some: list(map(prompt_of, some)), most=9, length=9, max_positions=99, vocab_size=256
        )

    found = samples(shapes)
    assert found.held_out == 1
    assert [ids[1].item() for ids in found.token_ids] == [images[0].digest[0] for images in found.images]
    assert found.digest != samples([*shapes[:-1], "aZZb"]).digest
    assert found.digest == samples(shapes).digest


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
        samples_of([""])
    with pytest.raises(ModelFilesError, match="the tokenizer has token id 300, the model only 256 ids"):
        samples_of([chr(300)])


def test_batches_hold_whole_samples() -> None:
    found = samples_of(["a" * 900, "b" * 900, "c" * 900, "d" * 2100, "e"], length=5000)
    batches = batches_of(found, range(5))
    assert [batch.samples for batch in batches] == [range(2), range(2, 3), range(3, 4), range(4, 5)]
    assert [batch.rows for batch in batches] == [
        slice(0, 1800), slice(1800, 2700), slice(2700, 4800), slice(4800, 4801)
    ]  # fmt: skip
    assert batches_of(found, range(2, 3))[0].rows == slice(1800, 2700)
    assert found.digest != samples_of(["a" * 900, "b" * 900, "c" * 900, "d" * 2100, "f"], length=5000).digest
