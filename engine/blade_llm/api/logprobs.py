"""Log-probabilities in OpenAI's two formats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from blade_llm.api.answers import TokenEntry
from blade_llm.text.tokenizer import Tokenizer

_FLOOR: Final = -9999.0
"""JSON has no infinity; OpenAI sends this instead."""


def chat_logprobs(entries: Iterable[TokenEntry], tokenizer: Tokenizer) -> dict[str, Any]:
    """``{"content": [{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}]}``"""

    def item(token_id: int, logprob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token_id)
        return {"token": _text(raw), "logprob": max(logprob, _FLOOR), "bytes": list(raw)}

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


def completion_logprobs(entries: Iterable[TokenEntry], tokenizer: Tokenizer) -> dict[str, Any]:
    """``{"tokens", "token_logprobs", "top_logprobs", "text_offset"}``, each a list with one element a token.

    ``top_logprobs`` holds the most likely tokens and the chosen one.
    """
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for entry in entries:
        token = _text(tokenizer.token_bytes(entry.token_id))
        chosen = max(entry.logprobs.chosen, _FLOOR)
        top = {
            _text(tokenizer.token_bytes(token_id)): max(logprob, _FLOOR)
            for token_id, logprob in zip(entry.logprobs.token_ids, entry.logprobs.logprobs, strict=True)
        }
        found["tokens"].append(token)
        found["token_logprobs"].append(chosen)
        found["top_logprobs"].append({**top, token: chosen})
        found["text_offset"].append(entry.text_offset)
    return found


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
