"""The server under load: where it is, and how a request for it is written."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from blade_llm.benchmark.errors import BenchmarkError
from blade_llm.benchmark.workload.datasets import Sample

Endpoint = Literal["chat", "completions"]
_PATHS: dict[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the API is."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    authority: str
    """The ``Host`` header."""
    prefix: str
    """Path before ``/chat/completions``: ``/v1``."""

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"


def parse_address(url: str) -> Address:
    """``http://HOST:PORT`` with or without ``/v1``, or any path the API lies under. Raises :class:`BenchmarkError`."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError as error:
        raise BenchmarkError(f"--base_url {url}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BenchmarkError(f"--base_url {url} is no address of a server; write http://HOST:PORT")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Address(
        host=parts.hostname,
        port=port or (443 if tls else 80),
        tls=tls,
        authority=parts.netloc.rpartition("@")[2],
        prefix=parts.path.rstrip("/") or "/v1",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The form of requests to the server."""

    address: Address
    endpoint: Endpoint
    model: str
    api_key: str | None = None
    temperature: float = 0.0
    include_usage: bool = True
    """Request token counts at the end of the stream."""
    ignore_eos: bool = True
    """Request outputs of exactly the wanted length (not part of OpenAI's API; most engines know it)."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the body."""

    @property
    def url(self) -> str:
        return self.address.url + _PATHS[self.endpoint]

    def request(self, sample: Sample) -> bytes:
        """Head and body of the request for ``sample``."""
        body: dict[str, Any] = {"model": self.model, **sample.body(self.endpoint), "max_tokens": sample.output_tokens}
        body |= {"temperature": self.temperature, "stream": True}
        if self.include_usage:
            body["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            body["ignore_eos"] = True
        return self._http("POST", _PATHS[self.endpoint], msgspec.json.encode(body | dict(self.extra)))

    def models_request(self) -> bytes:
        """Requests the names of the server's models."""
        return self._http("GET", "/models", b"")

    def _http(self, method: str, path: str, body: bytes) -> bytes:
        lines = [f"{method} {self.address.prefix}{path} HTTP/1.1", f"Host: {self.address.authority}"]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        if body:
            lines += ["Content-Type: application/json", "Accept: text/event-stream"]
        lines += [f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode() + body
