"""Find a folder's tokenizer: ``tokenizer.json``, else SentencePiece, tiktoken or tekken files, which are converted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from blade_llm.tokenizer_files.added_tokens import complete
from blade_llm.tokenizer_files.errors import TokenizerFormatError
from blade_llm.tokenizer_files.sentencepiece import convert_sentencepiece, is_sentencepiece
from blade_llm.tokenizer_files.tiktoken import convert_tekken, convert_tiktoken


def read_tokenizer_json(folder: Path) -> str:
    """The text of the folder's ``tokenizer.json``, or of one made from its other files.

    A conversion takes up to a few seconds. Raises :class:`TokenizerFormatError`.
    """
    path = folder / "tokenizer.json"
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
        converted = _convert(folder)
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerFormatError(f"{path} cannot be read: {error}") from None
    if converted is None:
        raise TokenizerFormatError(
            f"{path} is missing; give --tokenizer_dir a folder with the model's tokenizer.json, tokenizer.model, "
            "*.tiktoken or tekken.json"
        )
    text: str = converted.to_str()
    return text


def _convert(folder: Path) -> Tokenizer | None:
    config = _config(folder / "tokenizer_config.json")
    if (tekken := folder / "tekken.json").is_file():
        return convert_tekken(tekken)
    ranks = sorted(folder.glob("*.tiktoken"))
    for name in ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model"):
        path = folder / name
        if not path.is_file():
            continue
        data = path.read_bytes()
        if is_sentencepiece(data):
            return complete(convert_sentencepiece(path, data, config), folder, config)
        ranks.append(path)
    return complete(convert_tiktoken(ranks[0], config), folder, config) if ranks else None


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerFormatError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise TokenizerFormatError(f"{path} must hold a JSON object")
    return value
