"""Where a pod connects to, as far as its spec says: ports of hubs and proxies, and what makes that unknowable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from blade_operator.spec.pod_fields import EnvVar, PodTemplate

_PORTS: Final = {"http": 80, "https": 443, "socks4": 1080, "socks4a": 1080, "socks5": 1080, "socks5h": 1080}
"""Default ports of the URLs of hubs and proxies, by scheme."""
_MESHES: Final = (
    "sidecar.istio.io/",
    "istio.io/",
    "linkerd.io/",
    "config.linkerd.io/",
    "kuma.io/",
    "consul.hashicorp.com/",
)
"""Beginnings of labels and annotations by which a service mesh puts a sidecar of its own into a pod."""
_ENDPOINTS: Final = {
    "HF_ENDPOINT": "http",
    "MODELSCOPE_ENDPOINT": "https",
    "MODELSCOPE_DOMAIN": "https",
    "AWS_ENDPOINT_URL": "https",
    "AWS_ENDPOINT_URL_S3": "https",
    "OSS_ENDPOINT": "https",
}
"""Variables with the address of a hub or bucket, and its scheme where the address has none."""
_OFF: Final = frozenset({"false", "disabled", "none"})


def outbound_ports(env: Iterable[EnvVar], template: PodTemplate | None) -> set[int] | None:
    """Ports of the hubs and proxies that variables name; None where one of them cannot be known from the spec."""
    entries: list[Any] = [{"name": each.name, "value": each.value} for each in env]
    for container in _containers(template):
        if container.get("envFrom"):
            return None
        entries += container.get("env") or ()
    ports: set[int] = set()
    for entry in entries:
        found = _ports_of_host(entry) if _names_a_host(entry["name"]) else _ports_of_url(entry)
        if found is None:
            return None
        ports |= found
    return ports


def registry_ports(uri: str) -> set[int] | None:
    """The port of the registry in an ``oci://`` URI, which may send to others at 443; None where that is no port."""
    scheme, _, rest = uri.partition("://")
    if scheme != "oci":
        return set()
    _, port = _parsed(f"https://{rest}")
    return None if port is None else {port}


def has_unknown_containers(template: PodTemplate | None, rendered: Sequence[str]) -> bool:
    """Whether an overlay adds containers, or asks a service mesh for one: only others know where these connect to."""
    return any(each["name"] not in rendered for each in _containers(template)) or _in_a_mesh(template)


def _in_a_mesh(template: PodTemplate | None) -> bool:
    if template is None or template.metadata is None:
        return False
    marks = {**template.metadata.labels, **template.metadata.annotations}
    switches = {
        name: value for name, value in marks.items() if name.endswith(("inject", "injection", "connect-inject"))
    }
    if any(name.startswith(_MESHES) and value.lower() in _OFF for name, value in switches.items()):
        return False
    return any(name.startswith(_MESHES) for name in marks)


def _containers(template: PodTemplate | None) -> Iterator[Any]:
    if template is not None:
        for field in ("initContainers", "containers"):
            yield from template.spec.get(field) or ()


def _names_a_host(variable: str) -> bool:
    """Whether a variable holds the address of a proxy or hub, with a scheme or without."""
    name = variable.upper()
    return name in _ENDPOINTS or (name.endswith("_PROXY") and name != "NO_PROXY")


def _ports_of_host(entry: Any) -> set[int] | None:
    """The port of a hub's or proxy's address; None where the spec does not say it: elsewhere, or in other variables."""
    text = str(entry.get("value") or "")
    if entry.get("valueFrom") or "$(" in text:
        return None
    if not text:
        return set()
    scheme = _ENDPOINTS.get(entry["name"].upper(), "http")
    _, port = _parsed(text if "://" in text else f"{scheme}://{text}")
    return None if port is None else {port}


def _ports_of_url(entry: Any) -> set[int]:
    """The port of another variable's value, where that is the URL of something that may be a hub or proxy."""
    scheme, port = _parsed(str(entry.get("value") or ""))
    return set() if port is None or scheme not in _PORTS else {port}


def _parsed(url: str) -> tuple[str, int | None]:
    """Scheme and port of a URL; the port is None where it has none and its scheme none that is known."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return "", None
    return parts.scheme, port if parts.hostname else None
