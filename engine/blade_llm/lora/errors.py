"""Errors of adapters."""

from __future__ import annotations

from blade_llm.models.errors import ModelFilesError


class AdapterError(ModelFilesError):
    """An adapter that cannot be served; the message says what to change."""
