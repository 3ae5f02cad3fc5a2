"""tiktoken's rank files, and Mistral's tekken.json, as byte-level BPE of the ``tokenizers`` library."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from blade_llm.tokenizer_files.byte_level import bytes_to_token
from blade_llm.tokenizer_files.errors import MOST_UNNAMED, TokenizerFormatError

_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""How GPT-4's cl100k, Llama 3 and Qwen split text; they differ in how many digits make a piece."""
_DIGITS: Final = {"QWenTokenizer": "{1}"}
_KNOWN_CLASSES: Final = ("", "PreTrainedTokenizer", "TokenizersBackend", "LlamaTokenizer", "TikTokenTokenizer")

TEKKEN_BOS: Final = "<s>"
TEKKEN_EOS: Final = "</s>"
"""What Mistral calls the two in every tekken.json; no field says which they are."""


def convert_tiktoken(path: Path, config: Mapping[str, Any]) -> Tokenizer:
    """From lines of ``base64 rank``. Raises :class:`TokenizerFormatError`.

    How text is split stands in code that models bring along and that is never run: it is known for the classes of
    Llama 3 and Qwen, and ``pat_str`` in ``tokenizer_config.json`` may say it.
    """
    ranks: dict[bytes, int] = {}
    try:
        for line in path.read_bytes().splitlines():
            if line:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except (ValueError, binascii.Error) as error:
        raise TokenizerFormatError(f"{path} cannot be read as a tiktoken file: {error}") from None
    if not ranks:
        raise TokenizerFormatError(f"{path} holds no tokens")
    pattern, kind = config.get("pat_str"), str(config.get("tokenizer_class") or "").removesuffix("Fast")
    if not isinstance(pattern, str):
        if kind not in (*_DIGITS, *_KNOWN_CLASSES):
            raise TokenizerFormatError(
                f"{path}: how {kind} splits text is not known; give --tokenizer_dir a folder with a tokenizer.json, "
                'or write "pat_str" into tokenizer_config.json'
            )
        pattern = _PATTERN.replace("{DIGITS}", _DIGITS.get(kind, "{1,3}"))
    return _byte_level(ranks, pattern, str(path))


def convert_tekken(path: Path) -> Tokenizer:
    """From Mistral's tekken.json, whose special tokens come first. Raises :class:`TokenizerFormatError`.

    It says nothing of what is put around texts: Mistral's models begin with :data:`TEKKEN_BOS`.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        config = data["config"]
        num_special = int(config["default_num_special_tokens"])
        words = data["vocab"][: int(config["default_vocab_size"]) - num_special]
        ranks = {base64.b64decode(word["token_bytes"]): num_special + int(word["rank"]) for word in words}
        named = {int(token["rank"]): str(token["token_str"]) for token in data.get("special_tokens") or ()}
        pattern = str(config["pattern"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise TokenizerFormatError(f"{path} cannot be read as Mistral's tekken.json: {error!r}") from None
    if not 0 <= num_special <= MOST_UNNAMED:
        raise TokenizerFormatError(
            f"{path}: default_num_special_tokens is {num_special}; it must be between 0 and {MOST_UNNAMED}"
        )
    special = [named.get(rank, f"<SPECIAL_{rank}>") for rank in range(num_special)]
    tokenizer = _byte_level(ranks, pattern, str(path), special)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if TEKKEN_BOS in special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{TEKKEN_BOS}:0 $A:0",
            pair=f"{TEKKEN_BOS}:0 $A:0 {TEKKEN_BOS}:1 $B:1",
            special_tokens=[(TEKKEN_BOS, special.index(TEKKEN_BOS))],
        )
    return tokenizer


def _byte_level(ranks: Mapping[bytes, int], pattern: str, origin: str, special: Sequence[str] = ()) -> Tokenizer:
    merges: list[tuple[int, int, int, tuple[str, str]]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                merges.append((rank, ranks[left], ranks[right], (bytes_to_token(left), bytes_to_token(right))))
    vocabulary = {token: index for index, token in enumerate(special)}
    vocabulary |= {bytes_to_token(token): rank for token, rank in ranks.items()}
    model = models.BPE(vocabulary, [pair for *_, pair in sorted(merges)], ignore_merges=True)
    tokenizer = Tokenizer(model)
    try:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception as error:  # the library raises bare Exception
        raise TokenizerFormatError(f"{origin}: its pattern cannot be read: {error}") from None
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
