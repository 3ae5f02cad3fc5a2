"""What ``tokenizer_config.json`` adds to a converted tokenizer: tokens, and those that are put around texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from blade_llm.tokenizer_files.errors import MOST_UNNAMED, TokenizerFormatError


def complete(
    tokenizer: Tokenizer, folder: Path, config: Mapping[str, Any], added: Mapping[int, AddedToken]
) -> Tokenizer:
    """``tokenizer`` with the ``added`` tokens by id, and with BOS and EOS where its configuration wants them.

    Raises :class:`TokenizerFormatError` for tokens whose ids others have, or that lie far beyond all others.
    """
    for token_id, token in sorted(added.items()):
        known = tokenizer.token_to_id(token.content)
        expected = tokenizer.get_vocab_size(with_added_tokens=True) if known is None else known
        if token_id != expected:
            if known is None and expected < token_id <= expected + MOST_UNNAMED:
                tokenizer.add_special_tokens(
                    [
                        AddedToken(f"<|unused_{each}|>", special=True, normalized=False)
                        for each in range(expected, token_id)
                    ]
                )
            else:
                raise TokenizerFormatError(
                    f"{folder}: added token {token.content!r} has id {token_id}, but {expected} would be its own; "
                    "give --tokenizer_dir a folder with a tokenizer.json"
                )
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    _surround(tokenizer, config)
    return tokenizer


def decoder_tokens(config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Those of ``tokenizer_config.json``, by id."""
    found: dict[int, AddedToken] = {}
    entries = config.get("added_tokens_decoder")
    for token_id, entry in entries.items() if isinstance(entries, dict) else ():
        if isinstance(entry, dict) and isinstance(entry.get("content"), str):
            options = {name: bool(entry.get(name, False)) for name in ("lstrip", "rstrip", "single_word", "special")}
            found[int(token_id)] = AddedToken(entry["content"], normalized=bool(entry.get("normalized")), **options)
    return found


def more_tokens(path: Path) -> dict[int, AddedToken]:
    """Those of an ``added_tokens.json``, by id."""
    entries = json.loads(path.read_text(encoding="utf-8")).items()
    return {int(token_id): AddedToken(content, special=True, normalized=False) for content, token_id in entries}


def _surround(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """As ``add_bos_token`` and ``add_eos_token`` say; Llama's tokenizers put BOS before a text unless they say no."""
    llama = str(config.get("tokenizer_class", "")).startswith(("Llama", "CodeLlama", "Gemma"))
    before, after = bool(config.get("add_bos_token", llama)), bool(config.get("add_eos_token", False))
    bos = _token(tokenizer, config.get("bos_token") or "<s>") if before else None
    eos = _token(tokenizer, config.get("eos_token") or "</s>") if after else None
    around = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    tokens = [(token, tokenizer.token_to_id(token)) for token in (bos, eos) if token]
    if tokens:
        pair = [f"{part}:1" if part != "$A" else "$B:1" for part in around]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(f"{part}:0" if part == "$A" else part for part in around),
            pair=" ".join([*around, *pair]),
            special_tokens=tokens,
        )


def _token(tokenizer: Tokenizer, entry: object) -> str | None:
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) and tokenizer.token_to_id(content) is not None else None
