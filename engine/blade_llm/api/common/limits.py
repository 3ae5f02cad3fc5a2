"""Limits of what a client sends; apart from what enforces them, which takes the HTTP stack to import."""

from __future__ import annotations

from typing import Final

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
