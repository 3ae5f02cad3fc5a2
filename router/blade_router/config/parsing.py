"""Parsing and validation of the router's configuration.

Every list of endpoints, whatever its source, is validated here, so that a mistake is reported by the path of its field
before anything acts on it.
"""

import math
import re
from collections.abc import Iterable
from typing import get_args
from urllib.parse import urlsplit

import msgspec

from blade_protocol.routing import AdapterConfig, EndpointConfig, ModelConfig, PolicyName, RouterConfig

POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)

_decode = msgspec.json.Decoder(RouterConfig).decode
_NAME = re.compile(r"[!-~]{1,256}")


class ConfigError(ValueError):
    """An unusable configuration; the message names the field and what is expected."""


def parse_config(content: bytes) -> RouterConfig:
    """Parse a ``RouterConfig`` from its JSON.

    Raises:
        ConfigError: not JSON, an unknown or missing field, a wrong type, or an invalid value; says where.
    """
    try:
        config = _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(error)) from None
    check_models(config.models)
    check_adapters(config)
    check_numbers(config)
    return msgspec.structs.replace(config, endpoints=checked(config.endpoints, "$.endpoints[{}]"))


def check_models(models: Iterable[ModelConfig]) -> None:
    """Check that every name stands for one model.

    Raises:
        ConfigError: says which does not.
    """
    seen: dict[str, str] = {}
    for index, model in enumerate(models):
        where = f"$.models[{index}]"
        places = [(f"{where}.name", model.name)]
        places += [(f"{where}.aliases[{number}]", alias) for number, alias in enumerate(model.aliases)]
        for place, name in places:
            if not name:
                raise ConfigError(f"{place}: expected a name")
            if name in seen:
                raise ConfigError(f"{place}: {name!r} is {seen[name]} already")
            seen[name] = place
        if fixed := {"model", "messages", "prompt", "input", "stream"} & model.defaults.keys():
            raise ConfigError(f"{where}.defaults.{min(fixed)}: a request says this itself; it has no default")


def check_adapters(config: RouterConfig) -> None:
    """Check that no adapter has another's name, and that requests of each name go anywhere.

    Raises:
        ConfigError: says which one.
    """
    groups: dict[str, list[tuple[str, AdapterConfig]]] = {}
    names: dict[str, str] = {}
    for index, adapter in enumerate(config.adapters):
        where = f"$.adapters[{index}]"
        model = adapter.model or adapter.name
        if not adapter.name:
            raise ConfigError(f"{where}.name: expected a name")
        if adapter.name in names:
            raise ConfigError(f"{where}.name: {adapter.name!r} is {names[adapter.name]} already")
        _require_non_negative(f"{where}.weight", adapter.weight)
        names[adapter.name] = f"{where}.name"
        groups.setdefault(model, []).append((where, adapter))
    for model, group in groups.items():
        where, first = group[0]
        if model in names and all(adapter.name != model for _, adapter in group):
            raise ConfigError(f"{where}.model: {model!r} is {names[model]}, which has another model")
        if not any(adapter.weight > 0 for _, adapter in group):
            raise ConfigError(f"{where}.weight: no adapter of {model!r} has a weight above 0")
        if any(adapter.service != first.service for _, adapter in group):
            raise ConfigError(f"{where}.service: the adapters of {model!r} are of different services")


def check_numbers(config: RouterConfig) -> None:
    """Check that every number is finite and not negative.

    Raises:
        ConfigError: says which is not.
    """
    groups: list[tuple[str, msgspec.Struct]] = [
        ("$.queue", config.queue),
        ("$.hold", config.hold),
        ("$.limits", config.limits),
        ("$.anonymous", config.anonymous),
    ]
    for index, model in enumerate(config.models):
        groups.append((f"$.models[{index}].limits", model.limits))
        _require_non_negative(f"$.models[{index}].max_tokens", model.max_tokens)
    for where, group in groups:
        for field in group.__struct_fields__:
            _require_non_negative(f"{where}.{field}", getattr(group, field))
    if not 0 < config.queue.key_share <= 1:
        raise ConfigError(f"$.queue.key_share: expected a number above 0 and at most 1, not {config.queue.key_share:g}")
    if not config.hold.heartbeat:
        raise ConfigError("$.hold.heartbeat: expected seconds, more than 0")
    for revision, weight in config.canary.items():
        _require_non_negative(f"$.canary[{revision!r}]", weight)


def _require_non_negative(where: str, number: float) -> None:
    if not (math.isfinite(number) and number >= 0):
        raise ConfigError(f"{where}: expected a number of at least 0, not {number:g}")


def parse_endpoints(text: str) -> tuple[EndpointConfig, ...]:
    """Parse endpoints from a comma-separated list of URLs.

    Raises:
        ConfigError: a URL that is not the base URL of an engine.
    """
    urls = [url.strip() for url in text.split(",") if url.strip()]
    if not urls:
        raise ConfigError("expected URL[,URL...], for example http://127.0.0.1:8081")
    return checked((EndpointConfig(url=url) for url in urls), "endpoint {}")


def checked(endpoints: Iterable[EndpointConfig], place: str) -> tuple[EndpointConfig, ...]:
    """The endpoints with normalised URLs. ``place`` names an endpoint in errors, given its index."""
    result: list[EndpointConfig] = []
    seen: set[str] = set()
    for index, endpoint in enumerate(endpoints):
        where = place.format(index)
        url = _base_url(endpoint.url, f"{where}.url")
        if url in seen:
            raise ConfigError(f"{where}.url: {url} is listed twice")
        seen.add(url)
        if endpoint.name and not is_name(endpoint.name):
            raise ConfigError(f"{where}.name: {endpoint.name!r} must be printable ASCII without spaces")
        internal = _base_url(endpoint.internal_url, f"{where}.internal_url") if endpoint.internal_url else ""
        result.append(msgspec.structs.replace(endpoint, url=url, internal_url=internal))
    return tuple(result)


def is_name(text: str) -> bool:
    """Whether it can be an endpoint's name: it fits into a header."""
    return _NAME.fullmatch(text) is not None


def merge(*sources: Iterable[EndpointConfig]) -> tuple[EndpointConfig, ...]:
    """All endpoints of all sources; where a URL comes twice the later source describes it."""
    by_url = {endpoint.url: endpoint for source in sources for endpoint in source}
    return tuple(by_url.values())


def _base_url(url: str, where: str) -> str:
    example = "expected http://HOST:PORT"
    try:
        url.encode("ascii")
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{where}: {url!r} is not a URL ({error}); {example}") from None
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(f"{where}: {url!r}: {example}")
    if port == 0:
        raise ConfigError(f"{where}: {url!r}: port 0 cannot be connected to; {example}")
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(f"{where}: {url!r} must be a base URL without a path, query or user; {example}")
    if not re.fullmatch(r"[\w.:\[\]-]+", parts.netloc):
        raise ConfigError(f"{where}: {url!r} has a host that is none; {example}")
    return f"http://{parts.netloc}"
