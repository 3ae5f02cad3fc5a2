"""The protocols of grammars and their compiler; :mod:`blade_llm.sampling.guided` implements them, tests use fakes."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

import numpy as np

from blade_llm.sampling.grammar_spec import GrammarSpec


class Grammar(Protocol):
    """Follows one output, token by token, and says what may come next."""

    @property
    def finished(self) -> bool:
        """The output is complete and cannot go on: the request ends without an end-of-sequence token."""

    def accept(self, token_ids: list[int]) -> None:
        """Advance by tokens that were appended. An end-of-sequence token, where the mask allows it, is taken too.

        Raises ValueError when the grammar does not allow them (a broken mask: the request must end).
        """

    def forced(self) -> list[int]:
        """Tokens that must come next whatever the model says; often none. Does not change the state."""

    def fill(self, mask: np.ndarray) -> None:
        """Write the tokens allowed now into all of ``mask``, [words] int32 (see :mod:`blade_llm.sampling.masks`)."""

    def copy(self) -> Grammar:
        """An independent one in the same state, for another sample of the same prompt."""


class GrammarCompiler(Protocol):
    """Compiles grammar specs, off the caller's thread, and caches the compiled ones."""

    def compile(self, spec: GrammarSpec) -> Future[Grammar]:
        """A fresh grammar for one output. The future's exception is a ValueError that says what to change; it may be
        other requests' too, so it is read and not raised. Nobody cancels the future."""
