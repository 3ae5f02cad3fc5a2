"""Credentials for registries: of the environment, or of a Docker configuration, which Kubernetes' Secrets hold, too."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any, Final

from blade_llm.models.errors import ModelFilesError

_DOCKER_HUB: Final = ("docker.io", "index.docker.io", "registry-1.docker.io")


def registry_credentials(repository: str) -> tuple[str, str] | None:
    """User and password for ``repository`` (``REGISTRY/NAME``); None when there are none for it.

    ``OCI_USERNAME`` and ``OCI_PASSWORD``, else the ``auths`` of ``DOCKER_AUTH_CONFIG`` (the JSON itself), else of
    ``config.json`` in ``DOCKER_CONFIG`` or ``~/.docker``; there the longest path counts that ``repository`` begins
    with. Raises :class:`ModelFilesError` for what is no such JSON.
    """
    if username := os.environ.get("OCI_USERNAME"):
        return username, os.environ.get("OCI_PASSWORD", "")
    where, entries = _entries()
    found = {_address(str(key)): entry for key, entry in entries.items()}
    matching = [key for key in found if f"{_address(repository)}/".startswith(f"{key}/")]
    return _pair(where, found[max(matching, key=len)]) if matching else None


def _entries() -> tuple[str, dict[str, Any]]:
    """Where the configuration comes from, and its ``auths``."""
    if text := os.environ.get("DOCKER_AUTH_CONFIG"):
        where = "DOCKER_AUTH_CONFIG"
    else:
        path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return where, {}
        except (OSError, ValueError) as error:
            raise ModelFilesError(f"{where} cannot be read ({error}); set OCI_USERNAME and OCI_PASSWORD") from None
    try:
        found = json.loads(text).get("auths") or {}
        return where, dict(found)
    except (ValueError, TypeError, AttributeError):
        raise ModelFilesError(
            f"{where} is no Docker configuration: it must be JSON with an object called auths; `kubectl create secret "
            "docker-registry` and `docker login` write such"
        ) from None


def _address(key: str) -> str:
    """A registry, or a repository of one, as configurations may write it: with a scheme, or an API's version behind."""
    address = key.partition("://")[2] or key
    host, _, path = address.strip("/").partition("/")
    if host in _DOCKER_HUB:
        host = _DOCKER_HUB[0]
    return f"{host}/{path}" if path not in ("", "v1", "v2") else host


def _pair(where: str, entry: Any) -> tuple[str, str] | None:
    try:
        if entry.get("username"):
            return str(entry["username"]), str(entry.get("password") or "")
        if not entry.get("auth"):
            return None  # what a credential helper keeps is not here
        username, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    except (ValueError, TypeError, AttributeError):
        raise ModelFilesError(f"{where} has an entry of auths without user and password; write it anew") from None
    return username, password
