"""Which server the examples talk to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openai

BASE_URL = os.environ.get("BASE_URL", "http://127.0.0.1:8081/v1")
API_KEY = os.environ.get("API_KEY", "none")
"""Any text will do, unless a router in front asks for keys."""


MODEL = os.environ.get("MODEL")
"""The model's name; the server's first one when left out."""


def root_url() -> str:
    """The address without ``/v1``, which Anthropic's client adds itself."""
    return BASE_URL.removesuffix("/").removesuffix("/v1")


def client() -> openai.OpenAI:
    """OpenAI's client for this server."""
    import openai  # here, as not every example needs it

    return openai.OpenAI(base_url=BASE_URL, api_key=API_KEY)


def model() -> str:
    """The model's name."""
    return MODEL or client().models.list().data[0].id
