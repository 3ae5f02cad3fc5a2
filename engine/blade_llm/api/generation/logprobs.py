"""Log-probabilities in OpenAI's two formats, and vLLM's one for prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from blade_llm.api.generation.result import PromptLogprobs, TokenEntry
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.text.tokenizer import Tokenizer

_FLOOR: Final = -9999.0
"""JSON has no infinity; OpenAI sends this instead."""


class TokenNames:
    """How log-probabilities name tokens: by their text, or ``by_id``, which is unambiguous."""

    def __init__(self, tokenizer: Tokenizer, *, by_id: bool = False) -> None:
        self.tokenizer = tokenizer
        self.by_id = by_id

    def raw(self, token_id: int) -> bytes:
        return self.tokenizer.token_bytes(token_id)

    def __call__(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.by_id else self.text(token_id)

    def text(self, token_id: int) -> str:
        return self.raw(token_id).decode("utf-8", errors="replace")


def chat_logprobs(entries: Iterable[TokenEntry], names: TokenNames) -> dict[str, Any]:
    """``{"content": [{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}]}``"""

    def item(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token": names(token_id), "logprob": max(logprob, _FLOOR), "bytes": list(names.raw(token_id))}

    content = [
        {
            **item(entry.token_id, entry.logprobs.chosen),
            "top_logprobs": [
                item(token_id, logprob)
                for token_id, logprob in zip(entry.logprobs.token_ids, entry.logprobs.logprobs, strict=True)
            ],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """``{"tokens", "token_logprobs", "top_logprobs", "text_offset"}``, each a list with one element a token.

    The tokens of an output are what each adds to its text: nothing where that is skipped, or ends inside a character.
    ``top_logprobs`` holds the most likely tokens and the chosen one; both kinds of log-probabilities are null for a
    prompt's first token.
    """

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._tokens: list[str] = []
        self._chosen: list[float | None] = []
        self._top: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def add(self, token_id: int, logprobs: TokenLogprobs | None, offset: int, text: str | None = None) -> None:
        """Add a token. ``text``: what it adds to the output, where that is known; else it goes by its name."""
        token = self._names(token_id) if text is None or self._names.by_id else text
        self._tokens.append(token)
        self._offsets.append(offset)
        if logprobs is None:
            self._chosen.append(None)
            self._top.append(None)
            return
        chosen = max(logprobs.chosen, _FLOOR)
        top = {
            token if other == token_id else self._names(other): max(logprob, _FLOOR)
            for other, logprob in zip(logprobs.token_ids, logprobs.logprobs, strict=True)
        }
        self._chosen.append(chosen)
        self._top.append({**top, token: chosen})

    def value(self) -> dict[str, Any]:
        return {
            "tokens": self._tokens,
            "token_logprobs": self._chosen,
            "top_logprobs": self._top,
            "text_offset": self._offsets,
        }


def prompt_logprobs(token_ids: Sequence[int], found: PromptLogprobs, names: TokenNames) -> list[Any]:
    """For each prompt token null (the first), or id → ``{"logprob", "rank", "decoded_token"}`` of the token itself and
    of the most likely ones. The rank is that among all tokens."""

    def entries(token_id: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        ranked = {
            other: (logprob, rank)
            for rank, (other, logprob) in enumerate(zip(logprobs.token_ids, logprobs.logprobs, strict=True), 1)
        }
        every = {token_id: (logprobs.chosen, logprobs.rank), **ranked}
        return {
            str(other): {"logprob": max(logprob, _FLOOR), "rank": rank, "decoded_token": names.text(other)}
            for other, (logprob, rank) in every.items()
        }

    return [
        None if logprobs is None else entries(token_id, logprobs)
        for token_id, logprobs in zip(token_ids, found, strict=True)
    ]
