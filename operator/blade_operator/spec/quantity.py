"""Kubernetes' two notations for amounts: quantities (``512Mi``, ``250m``) and durations (``10m``, ``1h30m``)."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
BYTES_PATTERN: Final = r"^[1-9][0-9]*(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
DURATION_PATTERN: Final = r"^([0-9]+h)?([0-9]+m)?([0-9]+s)?$"

_QUANTITY: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<suffix>[a-zA-Z]*)")
_SUFFIXES: Final[dict[str, Decimal]] = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_DURATION: Final = re.compile(r"(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?")


def parse_quantity(value: int | str) -> Decimal:
    """The amount a quantity stands for: ``"1Gi"`` → 1073741824. Raises ``ValueError`` when it is none."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None or match["suffix"] not in _SUFFIXES:
        raise ValueError(f"{value!r} is not a quantity like 2, 500m, 512Mi or 4Gi")
    return Decimal(match["number"]) * _SUFFIXES[match["suffix"]]


def parse_bytes(value: int | str) -> int:
    """A quantity of bytes, rounded down."""
    return int(parse_quantity(value))


def parse_duration(value: str) -> int:
    """Seconds in a duration: ``"1h30m"`` → 5400. Raises ``ValueError`` when it is none."""
    match = _DURATION.fullmatch(value)
    if match is None or not value:
        raise ValueError(f"{value!r} is not a duration like 30s, 10m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def format_bytes(count: int) -> str:
    """Bytes as a readable quantity of three significant digits: 1503238553 → ``1.40Gi``."""
    amount = float(count)
    for suffix in ("", "Ki", "Mi", "Gi", "Ti"):
        if amount < 1000 or suffix == "Ti":
            break
        amount /= 1024
    if not suffix:
        return str(count)
    return (
        f"{amount:.0f}{suffix}"
        if amount >= 100
        else f"{amount:.1f}{suffix}"
        if amount >= 10
        else f"{amount:.2f}{suffix}"
    )
