"""GPT-2's and OPT's ``vocab.json`` and ``merges.txt``, as byte-level BPE of the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from blade_llm.tokenizer_files.errors import TokenizerFormatError

_KNOWN_CLASSES: Final = ("", "GPT2Tokenizer")
_END_OF_TEXT: Final = "<|endoftext|>"
"""GPT-2's one special token, where the configuration names none."""


def convert_merges(merges: Path, config: Mapping[str, Any]) -> Tokenizer:
    """From the two files and the special tokens that ``tokenizer_config.json`` names.

    Raises :class:`TokenizerFormatError` for classes that split text otherwise: the files do not say how.
    """
    kind = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    if kind not in _KNOWN_CLASSES:
        raise TokenizerFormatError(
            f"{merges}: how {kind} splits text is not known; give --tokenizer_dir a folder with a tokenizer.json"
        )
    tokenizer = Tokenizer(models.BPE.from_file(str(merges.with_name("vocab.json")), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space", False)))
    tokenizer.decoder = decoders.ByteLevel()
    named = [entry for role, entry in config.items() if role.endswith("_token")] or [_END_OF_TEXT]
    contents = (entry.get("content") if isinstance(entry, dict) else entry for entry in named)
    for content in contents:
        if isinstance(content, str) and tokenizer.token_to_id(content) is not None:
            tokenizer.add_special_tokens([AddedToken(content, special=True, normalized=False)])
    return tokenizer
