"""Fill in the middle: prompts of models that learned to write what stands between two texts.

Each family marks the two texts and the place of the output with tokens of its own; a model can fill in when its
tokenizer has all tokens of a format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from blade_llm.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Format:
    """Tokens in the order they are written; ``ends`` are further ones that end an output."""

    prefix: str
    suffix: str
    middle: str
    """Where the output begins; empty where it simply follows."""
    ends: tuple[str, ...] = ()
    suffix_first: bool = False


_FORMATS: Final = (
    _Format("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", ("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>")),
    _Format("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<|endoftext|>", "<fim_pad>", "<file_sep>")),
    _Format("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", ("\u2581<EOT>",)),
    _Format("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    _Format("[PREFIX]", "[SUFFIX]", "", suffix_first=True),
)
"""Qwen2.5-Coder and CodeGemma; StarCoder; Code Llama; DeepSeek-Coder; Codestral."""


class Infill:
    """One tokenizer's format."""

    def __init__(self, tokenizer: Tokenizer, form: _Format) -> None:
        self._tokenizer = tokenizer
        self._form = form
        ends = (tokenizer.token_id(token) for token in (*form.ends, form.prefix, form.suffix, form.middle) if token)
        self.end_ids: tuple[int, ...] = tuple(token_id for token_id in ends if token_id is not None)
        """Tokens that end an output beside the end of sequence."""

    def join(self, prefix: list[int], suffix: list[int], *, add_special_tokens: bool) -> list[int]:
        """Token ids of a prompt whose output stands between the two texts, given without special tokens."""
        form = self._form
        before = [*self._mark(form.prefix), *prefix]
        after = [*self._mark(form.suffix), *suffix]
        start = self._tokenizer.encode("", add_special_tokens=True) if add_special_tokens else []
        texts = after + before if form.suffix_first else before + after
        return [*start, *texts, *self._mark(form.middle)]

    def _mark(self, token: str) -> list[int]:
        token_id = self._tokenizer.token_id(token) if token else None
        return [] if token_id is None else [token_id]


def infill_of(tokenizer: Tokenizer) -> Infill | None:
    """How this tokenizer's model fills in; None: it did not learn to."""
    for form in _FORMATS:
        tokens = (form.prefix, form.suffix, form.middle)
        if all(tokenizer.token_id(token) is not None for token in tokens if token):
            return Infill(tokenizer, form)
    return None
