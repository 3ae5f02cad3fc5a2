"""The service's internal token, and access control of the routes that show the router's inside.

There are two rules. An autoscaler that queries the signals is a program: where there is a token it must present it,
from whatever machine. ``/debug/route`` is queried by people, with curl in the router's container: from there they need
no token. But it shows how prompts are cached, so a request that a proxy on this machine forwards does not count as
local.
"""

import hmac
import ipaddress
import os
from pathlib import Path

from blade_protocol import environment
from blade_router.config.token_header import shared


def token_file() -> Path | None:
    """The file with the internal token that the environment names."""
    path = os.environ.get(environment.INTERNAL_TOKEN_FILE)
    return Path(path) if path else None


def may_see_signals(file: Path | None, given: str, host: str) -> bool:
    """Whether a client at ``host`` may query signals: with the token, or from this machine if there is none."""
    return _is_loopback(host) if file is None else _is_token(given, file)


def may_see_routes(file: Path | None, given: str, host: str, *, forwarded: bool) -> bool:
    """Whether a client may query routes: with the token, or from here. ``forwarded``: by a proxy for another."""
    if given and file is not None:
        return _is_token(given, file)
    return not forwarded and _is_loopback(host)


def has_token(file: Path | None, given: str) -> bool:
    """Whether a client has presented the token; never where there is none."""
    return bool(given) and file is not None and _is_token(given, file)


def _is_token(given: str, file: Path) -> bool:
    """Whether the file holds this token now, or did a while ago. An empty or unreadable file matches none."""
    try:
        expected = file.read_bytes().strip()
    except OSError:
        return False
    lately = shared(file).accepts(given)  # whatever is presented: so it sees each change
    return bool(expected) and (lately or hmac.compare_digest(expected, given.encode("utf-8", "replace")))


def _is_loopback(host: str) -> bool:
    """Whether that is a loopback address, possibly mapped to IPv6 by a dual-stack socket."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
