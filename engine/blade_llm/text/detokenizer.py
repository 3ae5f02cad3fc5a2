"""Text that grows token by token: what was given out never changes, and characters never break at UTF-8 borders.

Byte-level tokens are bytes, so an incremental UTF-8 decoder does it exactly, mostly at a dictionary look-up per token.
Other tokenizers (SentencePiece with byte fallback) decode a short window of recent tokens, with and without the new
ones, and give out the difference once it ends in a whole character.

Decoding all tokens at once differs in one case: it writes a run of byte tokens as U+FFFD throughout if any byte in it
is broken, be it after whole characters. Those were given out and stay; waiting for the end of every run would hold back
languages and emoji that the vocabulary spells in bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final, Protocol

from blade_llm.text.tokenizer import Tokenizer

_REPLACEMENT: Final = "\ufffd"
_MOST_HELD_TOKENS: Final = 8
"""A character spans at most four byte tokens; more that still end in U+FFFD are not going to become one."""
_PROMPT_TOKENS: Final = 8
"""Tokens of the prompt's end that serve as context of an output's first token."""


class Detokenizer(Protocol):
    """Turns one request's tokens into text."""

    def add(self, token_id: int) -> str:
        """The text this token completes; often one word, ``""`` in the middle of a character."""

    def finish(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character, else ``""``."""


def make_detokenizer(
    tokenizer: Tokenizer,
    *,
    prompt: Sequence[int] = (),
    skip_special_tokens: bool = True,
    shown_ids: frozenset[int] = frozenset(),
) -> Detokenizer:
    """A fresh detokenizer for one output to ``prompt``, with the special tokens ``shown_ids`` in the text all the same.

    All pieces joined are what ``tokenizer.decode`` of prompt and output adds to that of the prompt: where decoding
    strips a text's first space (Llama 2), that of an output in the middle of a text stays. Whole characters in a run of
    byte tokens stay too, whatever comes after them in that run.
    """
    skipped = tokenizer.special_ids - shown_ids if skip_special_tokens else frozenset()
    if tokenizer.is_byte_level:
        return _ByteLevelDetokenizer(tokenizer, skipped)
    return _WindowDetokenizer(tokenizer, prompt, skipped)


class _ByteLevelDetokenizer:
    """Between whole characters a token that consists of whole ones always has the same text: that is looked up."""

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = skipped
        self._known = tokenizer.known_texts.setdefault(skipped, {})
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._within = False
        """The bytes so far end inside a character."""

    def add(self, token_id: int) -> str:
        if self._within or (text := self._known.get(token_id)) is None:
            return self._decode(token_id)
        return text

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)

    def _decode(self, token_id: int) -> str:
        began_within = self._within
        text = "" if token_id in self._skipped else self._decoder.decode(self._token_bytes(token_id))
        self._within = bool(self._decoder.getstate()[0])
        if not began_within and not self._within:
            self._known[token_id] = text
        return text


class _WindowDetokenizer:
    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._context = [token_id for token_id in prompt[-_PROMPT_TOKENS:] if token_id not in skipped]
        """Tokens already given out, kept because decoders treat the first token of a text differently."""
        self._context_text = self._decode(self._context)
        while self._context_text.startswith(_REPLACEMENT):  # cut inside a character, which spoils all bytes after it
            del self._context[0]
            self._context_text = self._decode(self._context)
        self._held: list[int] = []
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        """Follows the bytes of a character that is written in byte tokens."""

    def add(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._held.append(token_id)
        byte = self._tokenizer.fallback_byte(token_id)
        if byte is None:
            self._bytes.reset()
        else:
            self._bytes.decode(byte)
            if self._bytes.getstate()[0]:
                return ""  # within a character
        text = self._decode(self._context + self._held)
        if byte is None and text.endswith(_REPLACEMENT) and len(self._held) < _MOST_HELD_TOKENS:
            return ""
        return self._give_out(text)

    def finish(self) -> str:
        return self._give_out(self._decode(self._context + self._held)) if self._held else ""

    def _give_out(self, text: str) -> str:
        piece = text[len(self._context_text) :]
        if not text or text == self._context_text:
            return ""  # nothing visible yet (a first space): it stays in the window
        self._context, self._held = self._held, []
        self._context_text = self._decode(self._context)
        return piece

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)  # those to be left out were
