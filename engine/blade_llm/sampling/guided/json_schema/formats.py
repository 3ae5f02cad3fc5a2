"""``format`` as keywords that llguidance follows exactly.

llguidance's own dates, times and durations include some that do not exist, so patterns stand for them. Others are
those that pydantic writes. A format that is not here is an annotation, as draft 2020-12 says of all.
"""

from __future__ import annotations

from typing import Any, Final

NATIVE: Final = frozenset({"email", "hostname", "ipv4", "ipv6", "uri", "uuid"})
"""Those that llguidance follows itself."""
INTEGER: Final = ("int32", "int64")
"""They mean something beside ``"type": "integer"`` only."""

_YEAR: Final = r"([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR: Final = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DAY: Final = r"((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
_DATE: Final = f"({_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME: Final = rf"{_HOUR}:[0-5][0-9](\.[0-9]{{1,9}})?(Z|[+-]{_HOUR})"

_AMOUNT: Final = "[0-9]{1,6}"
_SECONDS: Final = rf"{_AMOUNT}(\.[0-9]{{1,6}})?S"
_CLOCK: Final = f"T({_AMOUNT}H({_AMOUNT}M)?({_SECONDS})?|{_AMOUNT}M({_SECONDS})?|{_SECONDS})"
_DAYS: Final = f"({_AMOUNT}Y({_AMOUNT}M)?({_AMOUNT}D)?|{_AMOUNT}M({_AMOUNT}D)?|{_AMOUNT}D)"
_DURATION: Final = f"P({_DAYS}({_CLOCK})?|{_CLOCK}|{_AMOUNT}W)"

_HEX: Final = "[0-9a-fA-F]"
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = rf"{_BYTE}(\.{_BYTE}){{3}}"
_GROUP: Final = f"{_HEX}{{1,4}}"
_PREFIX4: Final = "([12]?[0-9]|3[0-2])"
_PREFIX6: Final = "([1-9]?[0-9]|1[01][0-9]|12[0-8])"


def _ipv6() -> str:
    """Eight groups, one run of them left out at most; no IPv4 address at the end (RFC 4291, section 2.2)."""
    cases = [f"({_GROUP}:){{7}}{_GROUP}"]
    for before in range(8):
        left = f"({_GROUP}:){{{before}}}" if before else ":"
        after = 7 - before
        cases.append(f"{left}:({_GROUP}(:{_GROUP}){{0,{after - 1}}})?" if after else f"{left}:")
    return f"({'|'.join(cases)})"


def _network4() -> str:
    """Addresses whose bits behind the prefix are 0, as networks have to be."""
    cases = [rf"{_IPV4}(/32)?", r"0\.0\.0\.0/0"]
    for prefix in range(1, 32):
        whole, bits = divmod(prefix, 8)
        octets = [_BYTE] * whole
        if bits:
            octets.append("(" + "|".join(str(value << (8 - bits)) for value in range(1 << bits)) + ")")
        cases.append(r"\.".join([*octets, *["0"] * (4 - len(octets))]) + f"/{prefix}")
    return f"({'|'.join(cases)})"


def _network6() -> str:
    """Prefixes of whole groups, and single addresses."""
    cases = [f"({_GROUP}:){{{groups - 1}}}{_GROUP}::/{16 * groups}" for groups in range(1, 7)]
    return f"({'|'.join([*cases, '::/0', f'({_GROUP}:){{7}}{_GROUP}(/128)?'])})"


def _uuid(version: str) -> str:
    return f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"


def _base64(alphabet: str) -> str:
    digit = f"[A-Za-z0-9{alphabet}]"
    return f"({digit}{{4}})*({digit}{{2}}==|{digit}{{3}}=)?"


_IPV6: Final = _ipv6()
_TEXTS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    **{f"uuid{version}": _uuid(str(version)) for version in range(1, 9)},
    "base64": _base64("+/"),
    "byte": _base64("+/"),
    "base64url": _base64("_-"),
    "ipv4network": _network4(),
    "ipv6network": _network6(),
    "ipv4interface": f"{_IPV4}(/{_PREFIX4})?",
    "ipv6interface": f"{_IPV6}(/{_PREFIX6})?",
    "ipvanyaddress": f"({_IPV4}|{_IPV6})",
    "ipvanynetwork": f"({_network4()}|{_network6()})",
    "ipvanyinterface": f"({_IPV4}(/{_PREFIX4})?|{_IPV6}(/{_PREFIX6})?)",
    "fraction": "-?[0-9]{1,9}(/[1-9][0-9]{0,8})?",
}
"""Format → the expression that the whole string matches."""
_BOUNDS: Final[dict[str, dict[str, Any]]] = {
    "int32": {"minimum": -(2**31), "maximum": 2**31 - 1},
    "int64": {"minimum": -(2**63) + 1024, "maximum": 2**63 - 1},  # llguidance keeps bounds as floats
}
EXACT: Final[dict[str, dict[str, Any]]] = {name: {"pattern": f"^({text})$"} for name, text in _TEXTS.items()} | _BOUNDS
"""Format → keywords that mean it."""
_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_HOST: Final = rf"{_LABEL}(\.{_LABEL}){{0,4}}"
_ATOM: Final = "[A-Za-z0-9_+-]{1,30}"
_NATIVE_NAMES: Final = {
    "uuid": f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "hostname": _HOST,
    "email": rf"{_ATOM}(\.{_ATOM})?@{_HOST}",
    "uri": rf"[a-z][a-z0-9+-]{{0,14}}://{_HOST}(:[0-9]{{1,4}})?(/[A-Za-z0-9._~-]{{0,60}}){{0,8}}",
}
"""Of :data:`NATIVE`, as far as names of properties may be: not all that there are."""
FOLLOWED: Final = sorted(NATIVE | EXACT.keys())
"""All formats that change outputs."""


def names_pattern(name: str) -> str | None:
    """The pattern of names of properties with the format ``name``; None: any name."""
    found: str | None = EXACT.get(name, {}).get("pattern")
    if found is not None:
        return found
    return f"^({_NATIVE_NAMES[name]})$" if name in _NATIVE_NAMES else None
