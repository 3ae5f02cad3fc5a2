"""Models in an OCI registry as artifacts of files: one layer each, with its name in ``org.opencontainers.image.title``,
as ``oras push`` makes them (OCI Distribution Specification 1.1)."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import threading
from typing import Any, Final

from huggingface_hub.utils import get_session, hf_raise_for_status

from blade_llm.hub.docker_config import registry_credentials
from blade_llm.hub.download import TIMEOUT_S, with_retries
from blade_llm.hub.model import HubModel, Listing, RemoteFile
from blade_llm.hub.wanted import wanted_files
from blade_llm.models.errors import ModelFilesError

DEFAULT_TAG: Final = "latest"
TITLE: Final = "org.opencontainers.image.title"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_MAX_MANIFEST_BYTES: Final = 4 << 20


def list_registry(model: HubModel) -> Listing:
    """The files of the artifact. Raises :class:`ModelFilesError` and the errors of requests."""
    registry, _, name = model.repo_id.partition("/")
    base, reference = f"{_scheme(registry)}://{registry}/v2/{name}", model.revision or DEFAULT_TAG
    headers: dict[str, str] = {}
    challenge = ""

    def renew() -> None:
        headers.update(_authorize(challenge, registry_credentials(model.repo_id)))

    def request() -> bytes:
        nonlocal challenge
        url = f"{base}/manifests/{reference}"
        with get_session().stream("GET", url, headers={**headers, "Accept": _MANIFEST}, timeout=TIMEOUT_S) as response:
            if response.status_code != 401 or challenge:
                return _manifest(model, response)
            challenge = response.headers.get("WWW-Authenticate", "") or "none"
        renew()
        with get_session().stream("GET", url, headers={**headers, "Accept": _MANIFEST}, timeout=TIMEOUT_S) as response:
            return _manifest(model, response)

    raw = with_retries(request, threading.Event())
    version = hashlib.sha256(raw).hexdigest()
    if reference.startswith("sha256:") and reference != f"sha256:{version}":
        raise ModelFilesError(f"model {model}: the registry sent the manifest sha256:{version}; a proxy changes it")
    layers = _layers(model, raw)
    files = []
    for title in wanted_files(list(layers), model):
        digest = layers[title]["digest"]
        match = _DIGEST.fullmatch(str(digest))
        if match is None:
            raise ModelFilesError(f"model {model}: {title} has the digest {digest!r}, no sha256; push it anew")
        size = layers[title]["size"]
        if type(size) is not int or size < 0:
            raise ModelFilesError(f"model {model}: {title} has the size {size!r}, no number of bytes; push it anew")
        files.append(RemoteFile(title, f"{base}/blobs/{digest}", size, match[1]))
    return Listing(version, files, headers, renew)


def _manifest(model: HubModel, response: Any) -> bytes:
    """The body of a response, if it is a manifest and not endless."""
    hf_raise_for_status(response)
    raw = b""
    for chunk in response.iter_bytes():
        raw += chunk
        if len(raw) > _MAX_MANIFEST_BYTES:
            raise ModelFilesError(
                f"model {model}: the registry sends a manifest of more than {_MAX_MANIFEST_BYTES} bytes; check its name"
            )
    return raw


def _layers(model: HubModel, raw: bytes) -> dict[str, dict[str, Any]]:
    """The layers by the names of their files."""
    try:
        found = {layer["annotations"][TITLE]: layer for layer in json.loads(raw)["layers"] if layer.get("annotations")}
        named = {str(title): layer for title, layer in found.items() if {"digest", "size"} <= layer.keys()}
    except (ValueError, KeyError, TypeError, AttributeError):
        named = {}
    if not named:
        raise ModelFilesError(
            f"model {model} is no artifact of files ({TITLE} on its layers); push the model's folder with oras, or run "
            "an image of it and pass its folder as --model"
        )
    return named


def _authorize(challenge: str, credentials: tuple[str, str] | None) -> dict[str, str]:
    """The headers that answer a registry's challenge."""
    if challenge.lower().startswith("basic") and credentials:
        import base64

        return {"Authorization": "Basic " + base64.b64encode(":".join(credentials).encode()).decode()}
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if "realm" not in fields:
        return {}
    wanted = {name: fields[name] for name in ("service", "scope") if name in fields}
    response = get_session().get(fields["realm"], params=wanted, auth=credentials, timeout=TIMEOUT_S)
    hf_raise_for_status(response)
    try:
        content = response.json()
        token = content.get("token") or content["access_token"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ModelFilesError(f"{fields['realm']} sends no token; check the registry's name, or its proxy") from None
    return {"Authorization": f"Bearer {token}"}


def _scheme(registry: str) -> str:
    """Registries on this machine need no certificate, and none does where ``OCI_PLAIN_HTTP`` is 1."""
    if os.environ.get("OCI_PLAIN_HTTP") == "1":
        return "http"
    host = registry.rpartition(":")[0] or registry
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return "http" if local else "https"
