"""llguidance's view of a model's tokenizer: for every token its bytes, in a trie.

Read from ``tokenizer.json``, or what stands for it. A vocabulary of 150,000 tokens takes about a second, so it is built
in a thread of :mod:`~blade_llm.sampling.guided.grammars`, never in the step loop.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import llguidance

from blade_llm.sampling.guided.errors import GrammarSpecError, as_grammar_spec_error
from blade_llm.tokenizer_files import read_tokenizer_json


def load_vocabulary(folder: Path, vocab_size: int, eos_token_ids: Iterable[int]) -> llguidance.LLTokenizer:
    """The vocabulary of ``folder``, padded to the ``vocab_size`` logits of the model.

    Raises :class:`GrammarSpecError` when llguidance cannot say which bytes the tokens stand for.
    """
    eos = [token_id for token_id in dict.fromkeys(eos_token_ids) if 0 <= token_id < vocab_size]
    try:
        if not eos:
            raise ValueError("the model names no end-of-sequence token")
        text = _without_padding(read_tokenizer_json(folder))
        return llguidance.LLTokenizer(text, n_vocab=vocab_size, eos_token=eos)
    except BaseException as error:
        reason = as_grammar_spec_error(error)
        raise GrammarSpecError(f"guided decoding is not possible with this model's tokenizer: {reason}") from None


def _without_padding(text: str) -> str:
    tokenizer: dict[str, Any] = json.loads(text)
    if tokenizer.get("padding") is None and tokenizer.get("truncation") is None:
        return text
    return json.dumps({**tokenizer, "padding": None, "truncation": None})
