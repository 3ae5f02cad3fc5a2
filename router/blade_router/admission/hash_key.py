"""``blade_router hash-key``: makes a key, or takes one, and prints the line for the file of keys."""

import argparse
import hashlib
import secrets
import sys
from collections.abc import Sequence

import msgspec


def main(arguments: Sequence[str]) -> None:
    """The key comes on stdin; with nothing there (or a terminal) a new one is made, and shown on stderr."""
    parser = argparse.ArgumentParser(
        prog="blade_router hash-key",
        description="Hash an API key for the file of --keys. The key is read from stdin; when that is a terminal or "
        "empty, a new one is made and shown once, on stderr.",
    )
    parser.add_argument("name", nargs="?", default="NAME", help="whose key it is")
    name = parser.parse_args(arguments).name
    key = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read().strip()
    if len(key.split()) > 1:
        sys.exit("blade_router hash-key: expected one key on stdin, without spaces")
    if not key:
        key = f"sk-{secrets.token_urlsafe(32)}"
        print(f"{key}\nGive this key to its owner now: only its hash is kept.", file=sys.stderr)
    print(msgspec.json.encode({"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest()}).decode())
