"""The architectures that are served, and the family that computes each one. No torch, so that ``blade_llm_check`` can
judge a folder in milliseconds."""

from __future__ import annotations

from typing import Final

from blade_llm.models.errors import UnsupportedModelError

SUPPORTED: Final[dict[str, str]] = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}
"""Architecture (first entry of ``architectures`` in ``config.json``) to family."""


def require_supported(architecture: str) -> str:
    """The family of ``architecture``.

    Raises :class:`UnsupportedModelError` that names the architecture and the supported ones.
    """
    family = SUPPORTED.get(architecture)
    if family is None:
        raise UnsupportedModelError(
            f"architecture {architecture!r} is not supported; use a model of one of these: {', '.join(SUPPORTED)}"
        )
    return family
