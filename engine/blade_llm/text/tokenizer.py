"""Token ids from text and back, on the ``tokenizers`` library alone.

``transformers.AutoTokenizer`` takes seconds to import; ``tokenizer.json`` holds the same rules, post-processor (BOS and
the like) included, and ``tokenizer_config.json`` names the special tokens that chat templates use. Other forms are
converted to it (:mod:`blade_llm.tokenizer_files`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken
from tokenizers import Tokenizer as _Backend

from blade_llm.text.errors import TokenizerFilesError, UnreadableTextError
from blade_llm.text.json_files import read_json_object
from blade_llm.tokenizer_files import TokenizerFormatError, read_tokenizer_json, special_names
from blade_llm.tokenizer_files.byte_level import token_to_bytes

_SPECIAL_NAMES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FALLBACK_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """The tokenizer of one model folder.

    Args:
        special_tokens: tokens of the vocabulary to treat as special, too; ``NAME=TOKEN`` names a role as well
            (``eos_token=<|im_end|>``).

    Raises :class:`TokenizerFilesError` when the folder has none, or one that cannot be read.
    """

    def __init__(self, folder: Path, special_tokens: Sequence[str] = ()) -> None:
        try:
            text = read_tokenizer_json(folder)
        except TokenizerFormatError as error:
            raise TokenizerFilesError(str(error)) from None
        try:
            self._backend = _Backend.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise TokenizerFilesError(f"{folder / 'tokenizer.json'} cannot be read as a tokenizer: {error}") from None
        self._backend.no_truncation()
        self._backend.no_padding()
        self.folder = folder
        self.config = read_json_object(folder / "tokenizer_config.json")
        named = {**special_names(folder), **read_json_object(folder / "special_tokens_map.json"), **self.config}
        self.special_tokens = {
            name: token for name in _SPECIAL_NAMES if (token := _token_text(named.get(name))) is not None
        }
        """Special tokens by role, as chat templates name them: ``{"eos_token": "<|im_end|>", …}``."""
        self._add_special_tokens(special_tokens)
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        """Ids that ``skip_special_tokens`` leaves out of the text."""
        self.added_ids = {str(token.content): token_id for token_id, token in added.items()}
        """Tokens that stand for a text of their own, special or not, which no other tokens are merged into."""
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        self.largest_id: int = max(vocabulary.values(), default=-1)
        self.longest_token: int = max(map(len, vocabulary), default=1)
        """Characters of it as the vocabulary spells it, so at least as many as its text has. (Only a tokenizer that
        writes any stretch of unknown text as one token makes fewer tokens of a text than this says.)"""
        self.is_byte_level = _is_byte_level(json.loads(self._backend.to_str()).get("decoder"))
        self._has_byte_fallback = not self.is_byte_level and "<0x0A>" in vocabulary
        self._bytes: dict[int, bytes] = {}
        self.known_texts: dict[frozenset[int], dict[int, str]] = {}
        """Cache of the detokenizers of byte-level outputs, for each set of ids they leave out: token id →
        its text between whole characters."""

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every token and its id, special ones included."""
        return self._backend.get_vocab(with_added_tokens=True)

    def require_within(self, vocab_size: int) -> None:
        """Raises :class:`TokenizerFilesError` for ids that a model of so many does not have."""
        if self.largest_id >= vocab_size:
            raise TokenizerFilesError(
                f"{self.folder}: the tokenizer has token id {self.largest_id}, the model only {vocab_size} ids; they "
                "do not belong together: give --tokenizer_dir the right folder"
            )

    def _add_special_tokens(self, given: Sequence[str]) -> None:
        for entry in given:
            name, equals, value = entry.partition("=")
            role = name if equals and name in _SPECIAL_NAMES else None
            token = entry if role is None else value
            if self._backend.token_to_id(token) is None:
                raise TokenizerFilesError(
                    f"--tokenizer_special_tokens {entry}: the vocabulary of {self.folder} has no token {token!r}; "
                    f"give one that it has, or NAME=TOKEN with one of {', '.join(_SPECIAL_NAMES)}"
                )
            self._backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
            if role is not None:
                self.special_tokens[role] = token

    @property
    def eos_token_id(self) -> int | None:
        """The id of the configured ``eos_token``: for chat models what ends a turn."""
        token = self.special_tokens.get("eos_token")
        return None if token is None else self._backend.token_to_id(token)

    def token_id(self, token: str) -> int | None:
        """The id of the token spelled exactly so in the vocabulary; None: there is none."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def token(self, token_id: int) -> str | None:
        """How the vocabulary spells a token; None: no token has this id."""
        found: str | None = self._backend.id_to_token(token_id)
        return found

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; with ``add_special_tokens`` the post-processor adds BOS and the like.

        Raises :class:`UnreadableTextError` where a pattern that splits texts would try for too long.
        """
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # a failed assertion in Rust, which is no Exception
                raise
            raise UnreadableTextError("the model's tokenizer gives up on this text; change or shorten it") from None
        return ids

    def encode_pair(self, first: str, second: str, limit: int | None = None) -> tuple[list[int], int]:
        """Token ids of a pair of texts as the post-processor joins them, and where the tokens begin that it gives the
        type 1; 0 where it gives that to none.

        Args:
            limit: most tokens; the end of ``second`` is cut off. What ``first`` has beyond stays.
        """
        one = self._backend.encode(first, add_special_tokens=False)
        two = self._backend.encode(second, add_special_tokens=False)
        if limit is not None:
            two.truncate(max(0, limit - len(one.ids) - self._backend.num_special_tokens_to_add(True)))
        pair = self._backend.post_process(one, two)
        return list(pair.ids), next((index for index, kind in enumerate(pair.type_ids) if kind), 0)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ``token_ids``; bytes that are no UTF-8 become U+FFFD, ids without a token nothing."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def fallback_byte(self, token_id: int) -> bytes | None:
        """The byte of a byte-fallback token, ``<0x0A>``; None: it is another kind of token."""
        if not self._has_byte_fallback:
            return None
        token = self._backend.id_to_token(token_id)
        found = None if token is None else _FALLBACK_BYTE.fullmatch(token)
        return None if found is None else bytes([int(found[1], 16)])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for, by itself. Exact for byte-level and byte-fallback tokens."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._token_bytes(token_id)
        return found

    def _token_bytes(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self.is_byte_level:
            return token_to_bytes(token)
        if fallback := _FALLBACK_BYTE.fullmatch(token):
            return bytes([int(fallback[1], 16)])
        return str(token).replace("\u2581", " ").encode("utf-8")


def _token_text(entry: object) -> str | None:
    """A special token is written as a string, or as an object with its ``content``."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    if decoder.get("type") == "Sequence" and len(decoder["decoders"]) == 1:
        return _is_byte_level(decoder["decoders"][0])
    return decoder.get("type") == "ByteLevel"
