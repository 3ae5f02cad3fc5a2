"""Which server the examples talk to."""

from __future__ import annotations

import os

import openai

BASE_URL = os.environ.get("BASE_URL", "http://127.0.0.1:8081/v1")
API_KEY = os.environ.get("API_KEY", "none")
"""Any text will do, unless a router in front asks for keys."""


def client() -> openai.OpenAI:
    """OpenAI's client for this server."""
    return openai.OpenAI(base_url=BASE_URL, api_key=API_KEY)


def model() -> str:
    """The model's name."""
    return os.environ.get("MODEL") or client().models.list().data[0].id
