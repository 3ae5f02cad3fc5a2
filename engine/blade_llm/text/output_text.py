"""One output's text: tokens in, safe text out. The HTTP API and the offline API share it."""

from __future__ import annotations

from collections.abc import Sequence

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.text.detokenizer import make_detokenizer
from blade_llm.text.stop_strings import StopStrings
from blade_llm.text.tokenizer import Tokenizer


class OutputText:
    """Detokenizes one output to ``prompt`` and stops it at its stop strings (which count from ``min_tokens`` on).

    The special tokens ``shown_ids`` are part of the text even without ``skip_special_tokens: false``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        sampling: SamplingParams,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._detokenizer = make_detokenizer(
            tokenizer, prompt=prompt, skip_special_tokens=sampling.skip_special_tokens, shown_ids=shown_ids
        )
        self._stop = StopStrings(sampling.stop, include=sampling.include_stop_str_in_output)
        self._has_stop = bool(sampling.stop)
        self._min_tokens = sampling.min_tokens
        self.num_tokens = 0
        """Tokens taken so far."""
        self.piece = ""
        """What the last call added to the text, held-back characters included."""
        self.length = 0
        """Characters detokenized so far, held-back ones included: the offset of the next token's text."""

    @property
    def stopped(self) -> bool:
        """A stop string was found: further tokens do not belong to the output."""
        return self._stop.matched is not None

    @property
    def stop_string(self) -> str | None:
        return self._stop.matched

    def add(self, token_id: int) -> str:
        """The text to give out after this token; ``""`` while a character or a possible stop string is incomplete."""
        self.num_tokens += 1
        self.piece = piece = self._detokenizer.add(token_id)
        self.length += len(piece)
        return self._watch(piece) if self._has_stop else piece

    def finish(self) -> str:
        """The rest, when the last token has come."""
        self.piece = piece = self._detokenizer.finish()
        self.length += len(piece)
        return "" if self.stopped else self._watch(piece) + self._stop.finish()

    def _watch(self, piece: str) -> str:
        return self._stop.add(piece) if self.num_tokens >= self._min_tokens else piece
