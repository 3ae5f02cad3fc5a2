"""Find a folder's tokenizer: ``tokenizer.json``, else SentencePiece, tiktoken or tekken files, or
``vocab.json`` and ``merges.txt``, which are converted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from blade_llm.tokenizer_files.added_tokens import complete, decoder_tokens, more_tokens
from blade_llm.tokenizer_files.errors import TokenizerFormatError
from blade_llm.tokenizer_files.merges import convert_merges
from blade_llm.tokenizer_files.sentencepiece import convert_sentencepiece, is_sentencepiece
from blade_llm.tokenizer_files.tiktoken import TEKKEN_BOS, TEKKEN_EOS, convert_tekken, convert_tiktoken


def read_tokenizer_json(folder: Path) -> str:
    """The text of the folder's ``tokenizer.json``, or of one made from its other files.

    A conversion takes up to a few seconds. Raises :class:`TokenizerFormatError`.
    """
    path = folder / "tokenizer.json"
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerFormatError(f"{path} cannot be read: {error}") from None
    converted = _convert(folder)
    if converted is None:
        raise TokenizerFormatError(
            f"{path} is missing; give --tokenizer_dir a folder with the model's tokenizer.json, tokenizer.model, "
            "*.tiktoken, tekken.json, or vocab.json and merges.txt"
        )
    text: str = converted.to_str()
    return text


def special_names(folder: Path) -> dict[str, str]:
    """Special tokens by role that the folder's tokenizer has without a ``tokenizer_config.json``: tekken's."""
    if (folder / "tokenizer.json").is_file() or not (folder / "tekken.json").is_file():
        return {}
    return {"bos_token": TEKKEN_BOS, "eos_token": TEKKEN_EOS}


def _convert(folder: Path) -> Tokenizer | None:
    config = _config(folder / "tokenizer_config.json")
    if (tekken := folder / "tekken.json").is_file():
        with _named(tekken):
            return convert_tekken(tekken)
    ranks = sorted(folder.glob("*.tiktoken"))
    for name in ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model"):
        path = folder / name
        if not path.is_file():
            continue
        with _named(path):
            data = path.read_bytes()
            if is_sentencepiece(data):
                return _completed(convert_sentencepiece(path, data, config), folder, config)
        ranks.append(path)
    if not ranks and (merges := folder / "merges.txt").is_file():
        with _named(merges):
            return _completed(convert_merges(merges, config), folder, config)
    if not ranks:
        return None
    with _named(ranks[0]):
        return _completed(convert_tiktoken(ranks[0], config), folder, config)


def _completed(tokenizer: Tokenizer, folder: Path, config: dict[str, Any]) -> Tokenizer:
    with _named(folder / "tokenizer_config.json"):
        tokens = decoder_tokens(config)
    if (path := folder / "added_tokens.json").is_file():
        with _named(path):
            tokens = more_tokens(path) | tokens
    with _named(folder / "tokenizer_config.json"):
        return complete(tokenizer, folder, config, tokens)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Whatever a broken file makes of a conversion is said with the file's name."""
    try:
        yield
    except TokenizerFormatError:
        raise
    except Exception as error:  # the library's own mistakes are of any kind
        raise TokenizerFormatError(f"{path} cannot be read as a part of a tokenizer: {error!r}") from None


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerFormatError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise TokenizerFormatError(f"{path} must hold a JSON object")
    return value
