"""Every kind of tokenizer on texts that are hard: the ids of its own library, and incremental decoding as decoding.

``make soak`` runs all with 10,000 texts.
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from engine_support.nasty_text import nasty_texts
from engine_support.tokenizer_kinds import (
    KINDS,
    SENTENCEPIECE,
    TIKTOKEN_PATTERN,
    byte_ranks,
    write_sentencepiece,
    write_tekken,
    write_tiktoken,
)
from examples.families.tokenizers import byte_level_tokenizer
from transformers import AutoTokenizer

from blade_llm.sampling.guided.vocabulary import load_vocabulary
from blade_llm.text.detokenizer import make_detokenizer
from blade_llm.text.errors import TokenizerFilesError
from blade_llm.text.tokenizer import Tokenizer

COUNTS = [400, pytest.param(10_000, marks=pytest.mark.soak)]


def _incremental(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = make_detokenizer(tokenizer)
    return "".join([*(detokenizer.add(token_id) for token_id in ids), detokenizer.finish()])


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_json(kind: str, count: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    KINDS[kind]().save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer(tmp_path)
    theirs: Any = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in nasty_texts(count):
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert _incremental(ours, ids) == ours.decode(ids), text


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_sentencepiece(kind: str, count: int, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    ours = Tokenizer(write_sentencepiece(tmp_path, **SENTENCEPIECE[kind]))
    theirs: Any = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    for text in nasty_texts(count):
        if any(token in text for token in ours.added_ids):
            continue  # SentencePiece knows no names of control pieces in texts
        if "NFKC" in kind and any(unicodedata.combining(character) for character in text):
            continue  # the library's table of normalizations loses marks after some letters
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text), text
        if theirs.unk_id() not in ids:
            assert ours.decode(ids) == theirs.decode(ids), text
        assert _incremental(ours, ids) == ours.decode(ids), text


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("form", ["tokenizer.model", "qwen.tiktoken", "tekken.json"])
def test_tiktoken(form: str, count: int, tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks, offset = byte_ranks(), 0
    if form == "tekken.json":
        offset = 10
        write_tekken(tmp_path, ranks, ["<unk>", "<s>", "</s>", "[INST]"], offset)
    else:
        write_tiktoken(tmp_path, ranks, form, tokenizer_class="PreTrainedTokenizerFast")
    ours = Tokenizer(tmp_path)
    theirs: Any = tiktoken.Encoding("x", pat_str=TIKTOKEN_PATTERN, mergeable_ranks=ranks, special_tokens={})
    for text in nasty_texts(count):
        if any(token in text for token in ours.added_ids):
            continue
        ids = ours.encode(text, add_special_tokens=False)
        assert [token_id - offset for token_id in ids] == theirs.encode(text, disallowed_special=()), text
        assert ours.decode(ids) == _incremental(ours, ids) == text


@pytest.mark.parametrize("count", COUNTS)
def test_merges(count: int, tmp_path: Path) -> None:
    """As facebook/opt-125m has them, beside a tokenizer_config.json and nothing else."""
    byte_level_tokenizer(("<s>", "<pad>", "</s>", "<unk>")).model.save(str(tmp_path))
    token = {
        "__type": "AddedToken",
        "content": "</s>",
        "normalized": True,
        "lstrip": False,
        "rstrip": False,
        "single_word": False,
    }
    config = {
        "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "add_bos_token": True, "errors": "replace",
        "bos_token": token, "eos_token": token, "unk_token": token, "pad_token": "<pad>",
    }  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, theirs = Tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert (ours.eos_token_id, ours.special_ids) == (2, {1, 2})
    for text in ["one</s>two", *nasty_texts(count)]:
        ids = ours.encode(text)
        assert ids == theirs(text).input_ids, text
        assert ids[0] == 2, text
        assert _incremental(ours, ids) == ours.decode(ids), text


def test_texts_begin_with_bos_and_turns_end_with_eos_where_tekken_is_all_there_is(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_tekken(tmp_path, byte_ranks(), ["<unk>", "<s>", "</s>", "[INST]"], 10))
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.eos_token_id == 2
    assert tokenizer.encode("[INST]") == [1, 3]
    assert tokenizer.decode([1, *tokenizer.encode("hi", add_special_tokens=False), 2]) == "hi"


@pytest.mark.parametrize(
    ("data", "says"),
    [("[1]", "added_tokens.json cannot be read"), ("{", "added_tokens.json cannot be read"),
     ('{"<x>": "y"}', "added_tokens.json cannot be read"), ('{"<x>": 2000000000}', "'<x>' has id 2000000000, but 9")],
)  # fmt: skip
def test_added_tokens_that_cannot_be_read_are_named(data: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(_model(*PIECES))
    (tmp_path / "added_tokens.json").write_text(data)
    with pytest.raises(TokenizerFilesError, match=says):
        Tokenizer(tmp_path)


def _field(number: int, data: bytes) -> bytes:
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def _model(*pieces: tuple[str, int], trainer: bytes = b"\x18\x02", normalizer: bytes = b"\x20\x00") -> bytes:
    """A SentencePiece model by hand: BPE, and extra spaces stay. Kinds: 1 normal, 2 unknown, 3 control, 4 user's."""
    fields = [_field(1, _field(1, text.encode()) + b"\x18" + bytes([kind])) for text, kind in pieces]
    return b"".join(fields) + _field(2, trainer) + _field(3, normalizer)


PIECES = (
    ("<unk>", 2),
    ("<s>", 3),
    ("</s>", 3),
    ("\u2581", 1),
    ("h", 1),
    ("i", 1),
    ("hi", 1),
    ("\u2581hi", 1),
    ("<me>", 4),
)


def test_added_tokens_and_bos_of_a_converted_tokenizer(tmp_path: Path) -> None:
    """Without the package that wrote the model: it is read by hand."""
    (tmp_path / "tokenizer.model").write_bytes(_model(*PIECES))
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "eos_token": "</s>",
        "added_tokens_decoder": {
            "9": {"content": "<|a|>", "special": True},
            "11": {"content": "<b>", "special": False},
        },
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("hi<|a|>hi<me>") == [1, 7, 9, 7, 8]
    assert tokenizer.encode("<b>h", add_special_tokens=False) == [11, 3, 4]
    assert tokenizer.decode([1, 7, 9, 7, 2]) == "hi hi"
    assert tokenizer.eos_token_id == 2
    assert tokenizer.special_ids == {0, 1, 2, 9, 10}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "legacy": False, "add_bos_token": False}))
    assert Tokenizer(tmp_path).encode("hi<|a|>hi") == [7, 9, 6]


def test_guided_decoding_reads_a_converted_tokenizer(tmp_path: Path) -> None:
    write_tiktoken(tmp_path, byte_ranks())
    assert load_vocabulary(tmp_path, 512, [3]).tokenize_str("hello") == Tokenizer(tmp_path).encode("hello")


@pytest.mark.parametrize(
    ("name", "data", "config", "says"),
    [
        ("tokenizer.json", b"{", {}, "tokenizer.json cannot be read"),
        ("tokenizer.json", b"\xff", {}, "tokenizer.json cannot be read"),
        ("other", b"", {}, "tokenizer.model, \\*.tiktoken, tekken.json, or vocab.json and merges.txt"),
        ("tokenizer.model", _model(*PIECES)[:-1], {}, "cannot be read as a SentencePiece model"),
        ("tokenizer.model", b"\n\x05\x0a\x03\xff\xfe\xfd", {}, "cannot be read as a SentencePiece model"),
        ("tokenizer.model", _model(*PIECES, trainer=b"\x18\x03"), {}, "words or characters"),
        ("tokenizer.model", _model(*PIECES, normalizer=b"\x28\x00"), {}, "treats spaces"),
        ("tokenizer.model", b"aGk= x", {}, "cannot be read as a tiktoken file"),
        ("x.tiktoken", b"", {}, "holds no tokens"),
        ("x.tiktoken", b"aA== 0", {"tokenizer_class": "OddTokenizer"}, "how OddTokenizer splits text"),
        ("x.tiktoken", b"aA== 0", {"pat_str": "("}, "its pattern cannot be read"),
        ("x.tiktoken", b"aA== -5", {}, "x.tiktoken cannot be read"),
        ("tekken.json", b"{}", {}, "tekken.json"),
        ("merges.txt", b"#version: 0.2\n", {}, "merges.txt cannot be read"),  # without vocab.json
        ("merges.txt", b"", {"tokenizer_class": "OddTokenizerFast"}, "how OddTokenizer splits text"),
        (
            "tekken.json",
            b'{"config": {"default_num_special_tokens": 2000000000, "default_vocab_size": 1, "pattern": "a"}, '
            b'"vocab": []}',
            {},
            "default_num_special_tokens is 2000000000",
        ),
        (
            "tokenizer.model",
            _model(*PIECES),
            {"added_tokens_decoder": {"x": {"content": "<x>"}}},
            "_config.json cannot",
        ),
        ("tokenizer.model", _model(*PIECES), {"added_tokens_decoder": {"3": {"content": "<x>"}}}, "has id 3, but 9"),
    ],
)
def test_what_cannot_be_read_is_named(
    name: str, data: bytes, config: dict[str, Any], says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerFilesError, match=says):
        Tokenizer(tmp_path)


def test_further_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(_model(*PIECES))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert Tokenizer(tmp_path).special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = Tokenizer(tmp_path, ["<me>", "eos_token=hi"])
    assert tokenizer.special_ids == {0, 1, 2, 6, 8}
    assert tokenizer.eos_token_id == 6
    assert tokenizer.special_tokens["eos_token"] == "hi"
    assert tokenizer.decode([7, 8]) == "hi"
    with pytest.raises(TokenizerFilesError, match=r"--tokenizer_special_tokens <you>: .* no token '<you>'"):
        Tokenizer(tmp_path, ["<you>"])
