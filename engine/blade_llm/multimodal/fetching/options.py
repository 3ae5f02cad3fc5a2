"""What may be fetched, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Final

from blade_llm.multimodal.fetching.hosts import normalized_pattern

KERNEL_FOLDERS: Final = ("/proc", "/sys", "/dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """Rules and limits of one API-server process. Raises ValueError for what cannot be meant."""

    allowed_local_media_path: tuple[str, ...] = ()
    """Absolute paths of the folders below which ``file:`` URLs may point; empty: no ``file:`` URLs. vLLM's name."""
    allowed_media_domains: tuple[str, ...] = ()
    """Hosts that may be fetched from, redirects included: ``cdn.example`` or ``*.example``, which means every name
    below it and not itself. Empty: every host with a public address. vLLM's name."""
    private_media_domains: tuple[str, ...] = ()
    """Hosts, written as above, whose addresses may be private, loopback, link-local, shared (CGNAT), translated or
    tunnelled. They need not stand in ``allowed_media_domains`` too. Addresses of clouds' metadata services, multicast
    and unspecified ones stay refused."""
    allowed_media_ports: tuple[int, ...] = (80, 443)
    user_agent: str = "BladeLLM"

    max_bytes: int = 20 << 20
    """Longest file, in bytes."""
    max_request_bytes: int = 64 << 20
    """All files of one request together, in bytes."""
    max_held_bytes: int = 1 << 30
    """All files, of all requests whose fetching has not ended, in bytes. Requests beyond are refused for now."""
    max_request_urls: int = 256
    max_request_concurrency: int = 8
    """URLs of one request that are fetched at the same time."""
    max_concurrency: int = 64
    """URLs of all requests that are fetched over HTTP at the same time: the bound on connections. Others wait."""
    max_redirects: int = 5

    connect_timeout_s: float = 5.0
    """Name lookup, TCP and TLS of one connection together."""
    timeout_s: float = 30.0
    """One URL, redirects included, from when its turn comes."""
    request_timeout_s: float = 120.0
    """All URLs of one request, waiting for their turn included."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and (value < 0 or (value == 0 and field.name != "max_redirects")):
                raise ValueError(f"{field.name} is {value}: give a number above 0")
        for root in self.allowed_local_media_path:
            path = PurePosixPath(root)
            if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
                raise ValueError(f"allowed_local_media_path has {root!r}: give the absolute path of a folder, not /")
            if any(path.is_relative_to(never) for never in KERNEL_FOLDERS):
                raise ValueError(f"allowed_local_media_path has {root!r}: files of the kernel are no media")
        for name in ("allowed_media_domains", "private_media_domains"):
            patterns = tuple(normalized_pattern(pattern) for pattern in getattr(self, name))
            object.__setattr__(self, name, patterns)
        for port in self.allowed_media_ports:
            if not 0 < port < 65536:
                raise ValueError(f"allowed_media_ports has {port}: give ports from 1 to 65535")
        if not self.user_agent.isascii() or not self.user_agent.isprintable() or not self.user_agent.strip():
            raise ValueError("user_agent must be one line of ASCII")
