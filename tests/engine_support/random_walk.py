"""Random walks through grammars over a tiny tokenizer: whatever a model could write under their masks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from engine_support.tool_models import write_tool_model

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.grammars import CachingGrammarCompiler
from blade_llm.sampling.guided.matcher import MatcherGrammar
from blade_llm.sampling.guided.validation import validate
from blade_llm.sampling.guided.vocabulary import load_vocabulary
from blade_llm.sampling.masks import mask_words
from blade_llm.text.tokenizer import Tokenizer

VOCABULARY = 384
EOS = 2


class GrammarEngine:
    """Tokenizer and grammars of one model.

    Args:
        markers: the markers of calls are tokens, else they are spelled.
    """

    def __init__(self, folder: Path, *, markers: bool) -> None:
        write_tool_model(folder, markers=markers)
        self.tokenizer = Tokenizer(folder)
        self.grammars = CachingGrammarCompiler(lambda: load_vocabulary(folder, VOCABULARY, [EOS]), VOCABULARY)

    def start(self, structure: GrammarSpec) -> MatcherGrammar:
        validate(structure)
        grammar = self.grammars.compile(structure).result(30)
        assert isinstance(grammar, MatcherGrammar)
        return grammar

    def text(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def allows(self, structure: GrammarSpec, text: str) -> bool:
        """Whether an output may be ``text``, in the tokens the tokenizer makes of it."""
        grammar = self.start(structure)
        for token_id in [*self.tokenizer.encode(text, add_special_tokens=False), EOS]:
            if token_id == EOS and grammar.finished:
                return True
            if token_id not in allowed(grammar):
                return False
            grammar.accept([token_id])
        return True

    def sample(
        self, structure: GrammarSpec, seed: int, most: int = 400, traps: Sequence[str] = (), begin: str = ""
    ) -> str | None:
        """A random output that begins so; free text ends soon, and tries ``traps``. None: it did not end in time."""
        grammar, random_ = self.start(structure), random.Random(seed)
        found = list(self.tokenizer.encode(begin, add_special_tokens=False))
        grammar.accept(found)
        while len(found) < most:
            if grammar.finished:
                return self.text(found)
            choices = allowed(grammar)
            assert choices, self.text(found)
            if EOS in choices and random_.random() < 0.3:
                return self.text(found)
            free = len(choices) > 100
            if free and traps and random_.random() < 0.3:
                token_ids = self._spelled(random_.choice(traps))
                trial = grammar.copy()
                try:
                    trial.accept(token_ids)
                except GrammarSpecError:
                    continue
                grammar = trial
                found += token_ids
                continue
            markers = sorted(choices.intersection(self.tokenizer.added_ids.values()) - {EOS})
            endings = self._endings(sorted(choices - {EOS}), random_) if free and traps else []
            choose = markers if free and markers and random_.random() < 0.2 else endings or sorted(choices - {EOS})
            token_id = random_.choice(choose)
            grammar.accept([token_id])
            found.append(token_id)
        return None

    def _endings(self, choices: list[int], random_: random.Random) -> list[int]:
        """Bytes that may end a string or its line, often."""
        if random_.random() < 0.5:
            return []
        ends = {ord(character) for character in '"\n<'}
        return [token for token in choices if self.tokenizer.token_bytes(token) in {bytes([end]) for end in ends}]

    def _spelled(self, text: str) -> list[int]:
        """Byte by byte: no token of a marker."""
        found = {self.tokenizer.token_bytes(token): token for token in range(VOCABULARY - 1, -1, -1)
                 if token <= self.tokenizer.largest_id}  # fmt: skip
        return [found[bytes([byte])] for byte in text.encode()]


def allowed(grammar: MatcherGrammar) -> set[int]:
    mask = np.zeros(mask_words(VOCABULARY), np.int32)
    grammar.copy().fill(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[:VOCABULARY].tolist())
