"""What the values of flags may be: each function raises ``argparse.ArgumentTypeError`` for anything else."""

import argparse

from blade_router.http.accept.trusted_proxies import TrustedProxies
from blade_router.request.part_limits import LEAST_PART_LIMIT
from blade_telemetry.options import traces_url
from blade_telemetry.sampling import parse_ratio


def port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def collector(text: str) -> str:
    try:
        return traces_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def ratio(text: str) -> float:
    try:
        return parse_ratio(text, "the ratio")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number (0 or more)")
    return int(text)


def part_bytes(text: str) -> int:
    found = whole(text)
    if 0 < found < LEAST_PART_LIMIT:
        raise argparse.ArgumentTypeError(f"{text!r} is less than {LEAST_PART_LIMIT}; give 0 for no limit")
    return found


def proxies(text: str) -> TrustedProxies:
    try:
        return TrustedProxies.parse(text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; give networks such as 10.0.0.0/8,192.168.1.7") from None


def seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds (0 or more)")
    return found


def some_seconds(text: str) -> float:
    found = seconds(text)
    if not found:
        raise argparse.ArgumentTypeError("must be more than 0")
    return found
