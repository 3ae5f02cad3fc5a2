"""The text model in the configuration of a model with images."""

from __future__ import annotations

from blade_llm.models.raw_config import RawConfig, text_fields

_TIED = "tie_word_embeddings"


def text_config(raw: RawConfig, *, tied: bool | None = None) -> RawConfig:
    """The text model's fields: those of ``text_config``, or all, as checkpoints before transformers 4.52 have them.

    Whether the output matrix is the embedding table stands beside ``text_config``, before transformers 5 in it; where
    the two differ, the outer one holds. ``tied``: what holds, where the family decides otherwise.

    Raises ``ValueError`` for a ``text_config`` that is no object.
    """
    text = raw.get("text_config")
    if text is None:
        return raw
    if not isinstance(text, dict):
        raise ValueError(f"'text_config' must be a JSON object, not {text!r}")
    return RawConfig({**text, _TIED: raw.flag(_TIED, bool(text.get(_TIED))) if tied is None else tied})


def either_tied(raw: RawConfig) -> bool:
    """Whether the outer configuration or the inner one says that the output matrix is the embedding table."""
    return raw.flag(_TIED) or bool(text_fields(raw.fields).get(_TIED))
