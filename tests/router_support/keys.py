"""API keys of tests: a keys file as users write it, and a client with a key."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from router_support.serving import Running, eventually, question

SECRET = "sk-correct-horse-battery"
HEX = hashlib.sha256(SECRET.encode()).hexdigest()
BEARER = {"authorization": f"Bearer {SECRET}"}


def content(*keys: Mapping[str, Any], **tiers: Mapping[str, Any]) -> str:
    return json.dumps({"keys": keys, "tiers": tiers})


def key(name: str = "team-a", secret: str = SECRET, **fields: Any) -> dict[str, Any]:
    return {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest(), **fields}


def write(path: Path, text: str) -> None:
    """Replace the file atomically, as the docs say."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.rename(path)


async def post_chat(router: Running, secret: str = SECRET, **body: Any) -> httpx.Response:
    return await router.client.post(
        "/v1/chat/completions", json=question() | body, headers={"authorization": f"Bearer {secret}"}
    )


async def knows(router: Running, name: str, secret: str) -> None:
    digest = hashlib.sha256(secret.encode()).digest()
    keyring = router.router.admission.keyring
    await eventually(lambda: any((key.name, key.digest) == (name, digest) for key in keyring.keys))
