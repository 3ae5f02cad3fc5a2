"""The key of Python's own hash function, of which the names of prompts' blocks are made.

Each process draws one at random. Those that tell each other of prompts need the same, and it must stay secret: who
knows it can make dictionaries slow. Python takes 32 bits, only from the environment, and only when it starts.
"""

import hashlib
import hmac
import os
import secrets
import sys
from pathlib import Path

VARIABLE = "PYTHONHASHSEED"


def random() -> str:
    """A seed for the workers of one router."""
    return str(secrets.randbits(32))


def of_token(token: bytes) -> str:
    """The seed of all routers that hold this internal token."""
    return str(int.from_bytes(hmac.digest(token, b"hash seed of router replicas", hashlib.sha256)[:4], "big"))


def restart_with(token_file: Path | None) -> None:
    """Start this program anew with the seed of the token, unless it has one; without a token nothing happens."""
    if VARIABLE in os.environ or token_file is None:
        return
    try:
        token = token_file.read_bytes().strip()
    except OSError:
        return
    if token:
        environment = os.environ | {VARIABLE: of_token(token)}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
