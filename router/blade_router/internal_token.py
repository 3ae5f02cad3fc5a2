"""The service's internal token, and who may look inside the router: its holders, and this machine.

There are two such questions, and they differ. An autoscaler that asks for signals is a program: where there is a token
it must show it, whatever machine it is on. ``/debug/route`` is asked by people, with curl in the router's container:
they need no token there. But it shows how prompts are cached, so what a proxy on this machine passes on does not count
as coming from here.
"""

import hmac
import ipaddress
import os
from pathlib import Path

from blade_protocol import environment


def token_file() -> Path | None:
    """The file with the internal token that the environment names."""
    path = os.environ.get(environment.INTERNAL_TOKEN_FILE)
    return Path(path) if path else None


def may_see_signals(file: Path | None, given: str, host: str) -> bool:
    """Whether someone at ``host`` who shows the token ``given`` may: with the token, or from here if there is none."""
    return _is_here(host) if file is None else _is_token(given, file)


def may_see_routes(file: Path | None, given: str, host: str, *, forwarded: bool) -> bool:
    """Whether someone may: with the token, or from here without any. ``forwarded``: a proxy says it is for another."""
    if given and file is not None:
        return _is_token(given, file)
    return not forwarded and _is_here(host)


def _is_token(given: str, file: Path) -> bool:
    """Whether the file holds this now. One that is empty or cannot be read lets nobody in."""
    try:
        expected = file.read_bytes().strip()
    except OSError:
        return False
    return bool(expected) and hmac.compare_digest(expected, given.encode("utf-8", "replace"))


def _is_here(host: str) -> bool:
    """Whether that is an address of this machine only, which a socket for both protocols shows as one of IPv6."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
