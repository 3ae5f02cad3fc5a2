"""Outputs sampled from random logits under a grammar, without an engine: fast enough for hundreds of schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, time
from functools import lru_cache
from pathlib import Path
from typing import Any

import llguidance
import numpy as np
from engine_support.tiny_text import SPECIAL, byte_level_tokenizer, write_tokenizer
from jsonschema import Draft202012Validator, FormatChecker
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.grammars import CachingGrammarCompiler
from blade_llm.sampling.guided.matcher import MatcherGrammar
from blade_llm.sampling.guided.vocabulary import load_vocabulary
from blade_llm.sampling.masks import mask_words

EOS = (2, 0)
"""Two, as chat models have."""


def tokenizer_with_merges(vocab_size: int = 1200) -> Tokenizer:
    """Byte-level BPE whose tokens span JSON's punctuation, as those of real models do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    values = [{"name": f"n{index}", "age": index, "skills": ["a b", None, True], "größe": 1.5} for index in range(60)]
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([json.dumps(value, ensure_ascii=False) for value in values], trainer)
    return tokenizer


@dataclass(frozen=True)
class SampledOutput:
    token_ids: list[int]
    """Without the token that ended it."""
    text: str
    finished: bool


class Driver:
    """Grammars over one tokenizer, and samples of random logits.

    Args:
        merges: a tokenizer with tokens longer than a byte.
    """

    def __init__(self, folder: Path, *, merges: bool) -> None:
        write_tokenizer(folder, tokenizer_with_merges() if merges else byte_level_tokenizer(259))
        self.vocab_size = 1216 if merges else 272  # a padded width, as models have
        self.vocabulary: llguidance.LLTokenizer = load_vocabulary(folder, self.vocab_size, EOS)
        self.grammars = CachingGrammarCompiler(lambda: self.vocabulary, self.vocab_size)
        self._mask = np.empty(mask_words(self.vocab_size), np.int32)
        self._first: dict[int, bytes] = {}

    def start(self, spec: GrammarSpec) -> MatcherGrammar:
        grammar = self.grammars.compile(spec).result(30)
        assert isinstance(grammar, MatcherGrammar)
        return grammar

    def allowed(self, grammar: MatcherGrammar) -> np.ndarray:
        """Token ids that may come next."""
        self._mask.fill(-1)
        grammar.fill(self._mask)
        return np.flatnonzero(np.unpackbits(self._mask.view(np.uint8), bitorder="little"))

    def sample(self, spec: GrammarSpec, rng: np.random.Generator, limit: int = 600) -> SampledOutput:
        """Sample until the output ends or has ``limit`` tokens; half of the forced tokens are taken at once."""
        grammar = self.start(spec)
        sampled: list[int] = []
        while not grammar.finished and len(sampled) < limit:
            allowed = self.allowed(grammar)
            assert allowed.size, (spec, sampled)
            assert allowed[-1] < self.vocab_size
            forced = grammar.forced()
            if forced:
                assert forced[0] in allowed
                if rng.random() < 0.5:
                    grammar.accept(forced)
                    sampled += forced
                    continue
            token = int(allowed[np.argmax(rng.gumbel(size=allowed.size))])
            if token in EOS:
                assert grammar.complete
                grammar.accept([token])
                assert grammar.finished
                break
            grammar.accept([token])
            sampled.append(token)
        return SampledOutput(sampled, self.text(sampled, whole=grammar.finished), grammar.finished)

    def text(self, token_ids: list[int], *, whole: bool = True) -> str:
        found: bytes = self.vocabulary.decode_bytes(token_ids)
        return found.decode() if whole else found.decode(errors="ignore")

    def begins(self, token_id: int, with_one_of: Collection[int]) -> bool:
        """Whether the bytes of a token begin with one of these."""
        if token_id not in self._first:
            self._first[token_id] = self.vocabulary.decode_bytes([token_id])[:1]
        return bool(self._first[token_id]) and self._first[token_id][0] in with_one_of

    def takes(self, spec: GrammarSpec, text: str) -> bool:
        """Whether ``text`` is an output."""
        grammar = self.start(spec)
        try:
            grammar.accept(self.vocabulary.tokenize_str(text))
        except ValueError:
            return False
        return grammar.complete

    def goes_on(self, spec: GrammarSpec, token_ids: list[int]) -> bool:
        """Whether ``token_ids`` begin an output."""
        grammar = self.start(spec)
        grammar.accept(token_ids)
        return bool(self.allowed(grammar).size)


@lru_cache(maxsize=1)
def _format_checker() -> Any:
    checker = FormatChecker()
    # jsonschema leaves these out where optional packages are missing
    for name, read in (("date-time", datetime.fromisoformat), ("time", time.fromisoformat)):

        def holds(value: object, read: Callable[[str], object] = read) -> bool:
            return not isinstance(value, str) or read(_for_python(value)) is not None

        checker.checks(name, raises=ValueError)(holds)
    return checker


def _for_python(value: str) -> str:
    """RFC 3339 has a 60th second and any number of digits after it; Python takes neither."""
    return re.sub(r"(\.\d{1,6})\d*", r"\1", value.upper().replace(":60", ":59"))


def problems(schema: dict[str, Any], text: str) -> list[str]:
    """What jsonschema says against ``text``, formats included."""
    validator = Draft202012Validator(schema, format_checker=_format_checker())
    return [error.message for error in validator.iter_errors(json.loads(text))]
