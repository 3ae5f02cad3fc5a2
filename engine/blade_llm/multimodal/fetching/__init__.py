"""From the URL of an image or a video in a request to its bytes: ``data:``, ``file:`` and ``http(s):``, within limits
and without reaching what only this server can reach."""

from __future__ import annotations

from blade_llm.multimodal.fetching.errors import MediaError as MediaError
from blade_llm.multimodal.fetching.errors import describe as describe
from blade_llm.multimodal.fetching.fetcher import Fetcher as Fetcher
from blade_llm.multimodal.fetching.options import FetchOptions as FetchOptions
