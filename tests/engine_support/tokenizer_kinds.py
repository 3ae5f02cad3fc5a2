"""A small tokenizer of each kind, trained here, as a model folder has it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from engine_support.nasty_text import CORPUS
from engine_support.tiny_text import byte_level_tokenizer
from examples.families.tokenizers import byte_fallback_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TIKTOKEN_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA: Final = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
SENTENCEPIECE: Final[dict[str, dict[str, Any]]] = {
    "bpe with bytes": {"model_type": "bpe", **LLAMA},
    "bpe without a first space": {"model_type": "bpe", **LLAMA, "add_dummy_prefix": False},
    "unigram with bytes": {"model_type": "unigram", "vocab_size": 440, **LLAMA},
    "bpe, NFKC": {"model_type": "bpe", "vocab_size": 300},
    "unigram, NFKC": {"model_type": "unigram", "vocab_size": 200},
}
"""Options of SentencePiece's trainer: Llama's and Mistral's, Gemma's, and those of older models."""


def word_piece() -> Tokenizer:
    """As BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """With ``▁`` for spaces."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False),
    )
    return tokenizer


KINDS: Final[dict[str, Callable[[], Tokenizer]]] = {
    "byte-level": byte_level_tokenizer,
    "byte fallback": byte_fallback_tokenizer,
    "WordPiece": word_piece,
    "Unigram": unigram,
}
"""Kinds that come as ``tokenizer.json``."""


def write_sentencepiece(folder: Path, config: dict[str, Any] | None = None, **options: Any) -> Path:
    """A folder with a ``tokenizer.model`` alone; needs the package ``sentencepiece``."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=written, hard_vocab_limit=False, minloglevel=2,
        **{"vocab_size": 420, **options},
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(written.getvalue())
    (folder / "tokenizer_config.json").write_text(json.dumps(config or {}))
    return folder


def byte_ranks(vocab_size: int = 400) -> dict[bytes, int]:
    """A byte-level vocabulary as tiktoken has it: byte strings by rank."""
    from blade_llm.tokenizer_files.byte_level import token_to_bytes

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    words = sorted(tokenizer.get_vocab().items(), key=lambda word: word[1])
    return {token_to_bytes(word): rank for rank, (word, _) in enumerate(words)}


def write_tiktoken(folder: Path, ranks: dict[bytes, int], name: str = "tokenizer.model", **config: Any) -> Path:
    """A folder with lines of ``base64 rank``."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    (folder / name).write_bytes(b"".join(lines))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_tekken(folder: Path, ranks: dict[bytes, int], special: list[str], num_special: int) -> Path:
    """Mistral's form."""
    folder.mkdir(parents=True, exist_ok=True)
    size = num_special + len(ranks)
    config = {
        "pattern": TIKTOKEN_PATTERN, "default_vocab_size": size, "default_num_special_tokens": num_special,
    }  # fmt: skip
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for token, rank in ranks.items()]
    vocab.append({"rank": len(ranks), "token_bytes": base64.b64encode(b"beyond the vocabulary").decode()})
    named = [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(special)]
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": named}))
    return folder
