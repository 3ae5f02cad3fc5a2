"""Connections to addresses that were checked: a name is resolved once, and what it resolved to is what is connected to,
so that a name server cannot answer differently afterwards (DNS rebinding)."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import httpcore
import httpx

from blade_llm.multimodal.fetching.addresses import classify, permitted
from blade_llm.multimodal.fetching.errors import MediaError, check_length
from blade_llm.multimodal.fetching.hosts import matches, normalized_host
from blade_llm.multimodal.fetching.options import FetchOptions
from blade_llm.multimodal.fetching.resolver import Resolver

_PER_FAMILY: Final = 2
"""Addresses of IPv4, and of IPv6, that are tried."""

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that passed all checks which need no name server."""

    url: str
    scheme: str
    """``http`` or ``https``."""
    host: str
    port: int
    authority: str
    """The Host header."""
    path: bytes
    private: bool
    """Whether its addresses need not be public."""


def check_url(url: str, options: FetchOptions) -> Target:
    """Raises MediaError for what is no URL, and for what the options refuse."""
    check_length(url)
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise MediaError("invalid", "it is no valid URL; percent-encode what is not allowed in one", url) from None
    scheme = parsed.scheme
    if scheme not in ("http", "https"):
        raise MediaError("invalid", "give an http:, https: or data: URL", url)
    if parsed.userinfo:
        raise MediaError("refused", "it holds a user name or password; give one without", url)
    host = normalized_host(parsed)
    if host is None:
        raise MediaError("invalid", "it names no valid host", url)
    port = parsed.port if parsed.port is not None else 443 if scheme == "https" else 80
    if port not in options.allowed_media_ports:
        allowed = ", ".join(map(str, sorted(options.allowed_media_ports)))
        raise MediaError("refused", f"this server fetches from ports {allowed} only (--allowed_media_ports)", url)
    private = matches(host, options.private_media_domains)
    if options.allowed_media_domains and not private and not matches(host, options.allowed_media_domains):
        raise MediaError("refused", "this server does not fetch from that host (--allowed_media_domains)", url)
    name = f"[{host}]" if ":" in host else host
    authority = name if parsed.port is None else f"{name}:{port}"
    return Target(url, scheme, host, port, authority, parsed.raw_path, private)


class Connector:
    """Opens connections, each to an address that :func:`permitted` lets pass.

    Proxies of the environment are not used: they would connect to whatever a name resolves to for them.
    """

    def __init__(
        self,
        options: FetchOptions,
        resolver: Resolver,
        tls: ssl.SSLContext,
        backend: httpcore.AsyncNetworkBackend,
    ) -> None:
        self._timeout = options.connect_timeout_s
        self._resolver = resolver
        self._tls = tls
        self._backend = backend

    async def connect(self, target: Target) -> httpcore.AsyncNetworkStream:
        """Name lookup, TCP and TLS. Raises MediaError."""
        try:
            async with asyncio.timeout(self._timeout) as limit:
                stream = await self._connect_any(target, await self._addresses(target), limit.when())
                if target.scheme == "http":
                    return stream
                return await self._start_tls(target, stream)
        except TimeoutError:
            reason = f"no connection to its server within {self._timeout:g} s"
            raise MediaError("timeout", reason, target.url) from None

    async def _addresses(self, target: Target) -> list[Address]:
        found: list[Address] = []
        with contextlib.suppress(OSError, ValueError):
            found = [ip_address(text) for text in await self._resolver.resolve(target.host, target.port)]
        usable = [address for address in found if permitted(address, private=target.private)]
        if not usable:
            # Whether such a name exists in this server's network is not for strangers to learn.
            classes = ", ".join(sorted({classify(address) for address in found}))
            reason = (
                "its host is unknown, or has no public address; use a public URL or data: (--private_media_domains)"
            )
            raise MediaError("refused", reason, target.url, detail=f"addresses of {target.host}: {classes or 'none'}")
        families = (IPv4Address, IPv6Address)
        tried = [a for family in families for a in [u for u in usable if isinstance(u, family)][:_PER_FAMILY]]
        return sorted(tried, key=usable.index)

    async def _connect_any(
        self, target: Target, addresses: list[Address], deadline: float | None
    ) -> httpcore.AsyncNetworkStream:
        assert deadline is not None
        loop = asyncio.get_running_loop()
        for tried, address in enumerate(addresses):
            share = (deadline - loop.time()) / (len(addresses) - tried)
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._backend.connect_tcp(str(address), target.port, timeout=max(share, 0.0))
        raise MediaError("unavailable", "its server takes no connections", target.url)

    async def _start_tls(self, target: Target, stream: httpcore.AsyncNetworkStream) -> httpcore.AsyncNetworkStream:
        try:
            return await stream.start_tls(self._tls, server_hostname=target.host)
        except BaseException as error:
            await stream.aclose()
            if not isinstance(error, httpcore.ConnectError | OSError):
                raise
            cause = error.__cause__ if isinstance(error, httpcore.ConnectError) else error
            reason = "TLS fails"
            if isinstance(cause, ssl.SSLCertVerificationError):
                reason = f"its certificate is not valid: {cause.verify_message}"
            raise MediaError("unavailable", reason, target.url) from None
