"""A bound of the work that a schema may cause: references multiply what a short text says."""

from __future__ import annotations

from typing import Final

from blade_llm.sampling.guided.errors import GrammarSpecError

_MOST: Final = 100_000


class Steps:
    """Schemas and names that may be looked at for one schema, those it refers to again and again."""

    def __init__(self) -> None:
        self._left = _MOST

    def take(self, count: int = 1) -> None:
        """Raises :class:`GrammarSpecError` where there are no more."""
        self._left -= count
        if self._left < 0:
            raise GrammarSpecError(
                "the schema's references and combinations lead to too many parts; simplify the schema"
            )
