"""Authentication: API keys, kept as their SHA-256 only.

A key that a file holds in plain is hashed when the file is read. Neither it nor what a client presents is kept, logged,
or repeated in an error.
"""

import hashlib
import hmac
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Literal

import msgspec

from blade_protocol.paths import MODELS
from blade_protocol.routing import Limits
from blade_router.config.parsing import ConfigError, is_name
from blade_router.http.errors import Headers, Refused

KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))
"""Where a client may put its key: ``Authorization: Bearer KEY``, or one of the others with nothing but the key."""
DEFAULT_WEIGHT = 1.0

_CHALLENGE = [(b"www-authenticate", b"Bearer")]
_UNKNOWN = re.compile(r"unknown field `.*?`(?= - at `\$|\Z)", re.DOTALL)
_HEX = re.compile(r"[0-9a-fA-F]{64}")


class TierConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings the keys of a tier have in common. None: not set here."""

    priority: int | None = None
    """As engines understand it: a lower number goes first. A request may set a higher one, never a lower."""
    weight: float | None = None
    """Its part when several keys wait, relative to the others'."""
    models: tuple[str, ...] | None = None
    """Names it may use, by name or alias; None for all."""
    paths: tuple[str, ...] | None = None
    """Paths it may use, with those below them, e.g. ``/v1/embeddings``; None for all. ``/v1/models`` is always open."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    web_ui: Literal["own", "all"] | None = None
    """Whose requests its holder sees in the web UI: those of the key, which is the default, or everybody's."""


class KeyConfig(TierConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key. Its settings override those of its tier."""

    name: str
    """Shown in logs and metrics; limits are counted under it, also when the key itself is replaced."""
    sha256: str = ""
    """SHA-256 of the key, in hex."""
    key: str = ""
    """The key itself, instead of ``sha256``."""
    tier: str = ""
    expires: datetime | None = None


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file with keys."""

    keys: tuple[KeyConfig, ...] = ()
    tiers: dict[str, TierConfig] = {}


@dataclass(frozen=True)
class Key:
    """A key as parsed, or all clients together, when there are no keys."""

    name: str
    digest: bytes = b""
    priority: int | None = 0
    """None: a request's own counts, whatever it is."""
    weight: float = DEFAULT_WEIGHT
    models: frozenset[str] | None = None
    paths: tuple[str, ...] | None = None
    limits: Limits = field(default_factory=Limits)
    expires: float | None = None
    """Seconds since 1970."""
    sees_all: bool = False
    """Its holder sees everybody's requests in the web UI."""

    @cached_property
    def cache_salt(self) -> str:
        """Keeps its prompts apart from other keys' in prefix caches; the same in every router, and after the key itself
        is replaced."""
        return hashlib.sha256(b"prefix cache of " + self.name.encode()).hexdigest()[:32]

    @property
    def quota_name(self) -> str:
        return f"key {self.name}"

    def allows(self, *names: str) -> bool:
        """It may use the model that has these names."""
        return self.models is None or not self.models.isdisjoint(names)

    def allows_path(self, path: str) -> bool:
        """It may use the path."""
        if self.paths is None:
            return True
        return any(path == each or path.startswith(f"{each}/") for each in (*self.paths, MODELS))


ANONYMOUS = Key("")
"""A client without a key, where there are none: its requests may have a priority of 0 or more."""
ANONYMOUS_OF_ANY_PRIORITY = Key("", priority=None)

_decode = msgspec.json.Decoder(KeyFile).decode


def parse_keys(files: Mapping[str, bytes]) -> tuple[Key, ...]:
    """The keys of all files, by the files' names. A file is JSON, or one key (or ``sha256:HEX``) and nothing else: then
    the file's name is the key's.

    Raises:
        ConfigError: says which file and field; never what a key is.
    """
    parsed = {place: _parse(place, content) for place, content in sorted(files.items())}
    tiers: dict[str, TierConfig] = {}
    for place, found in parsed.items():
        for name, tier in found.tiers.items():
            where = f"{place}: $.tiers.{name}"
            if name in tiers:
                raise ConfigError(f"{where}: there is another tier of this name")
            _check(tier, where)
            tiers[name] = tier
    keys: dict[str, Key] = {}
    digests: dict[bytes, str] = {}
    for place, found in parsed.items():
        for index, config in enumerate(found.keys):
            where = f"{place}: $.keys[{index}]"
            key = _key(config, tiers, where)
            if key.name in keys:
                raise ConfigError(f"{where}.name: there is another key named {key.name!r}")
            if key.digest in digests:
                raise ConfigError(f"{where}: this is the same key as {digests[key.digest]!r}")
            keys[key.name], digests[key.digest] = key, key.name
    return tuple(keys.values())


def _parse(place: str, content: bytes) -> KeyFile:
    text = content.strip()
    if text[:1] != b"{":
        name = place.rsplit("/", 1)[-1]
        if not text or len(text.split()) > 1:
            raise ConfigError(f'{place}: expected {{"keys": [...]}} as JSON, or one key and nothing else')
        kind, _, rest = text.decode("latin-1").partition(":")
        return KeyFile(keys=(KeyConfig(name=name, sha256=rest) if kind == "sha256" else _plain(name, text),))
    try:
        return _decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{place}: {_without_names(str(error))}") from None


def _without_names(message: str) -> str:
    """A message about an unknown field with the names that are known there instead of the field's own, which may be a
    key that somebody put in the wrong place."""
    message, unknown = _UNKNOWN.subn("an unknown field", message)
    if not unknown:
        return message
    kind = KeyConfig if "$.keys[" in message else TierConfig if "$.tiers[" in message else KeyFile
    return f"{message}; known are {', '.join(kind.__struct_fields__)}"


def _plain(name: str, key: bytes) -> KeyConfig:
    return KeyConfig(name=name, sha256=hashlib.sha256(key).hexdigest())


def _key(config: KeyConfig, tiers: Mapping[str, TierConfig], where: str) -> Key:
    _check(config, where)
    if not is_name(config.name):
        raise ConfigError(f"{where}.name: expected printable ASCII without spaces")
    if bool(config.key) == bool(config.sha256):
        raise ConfigError(f"{where}: expected one of sha256 (of the key, in hex) and key")
    if config.sha256 and not _HEX.fullmatch(config.sha256):
        raise ConfigError(f"{where}.sha256: expected 64 hexadecimal digits; `blade_router hash-key` prints them")
    if config.tier and config.tier not in tiers:
        known = ", ".join(sorted(tiers)) or "none"
        raise ConfigError(f"{where}.tier: there is no tier {config.tier!r} (there is: {known})")
    if config.expires is not None and config.expires.tzinfo is None:
        raise ConfigError(f"{where}.expires: expected a time with its zone, for example 2027-01-31T00:00:00Z")
    tier = tiers.get(config.tier, TierConfig())
    settings = {
        name: own if (own := getattr(config, name)) is not None else getattr(tier, name)
        for name in TierConfig.__struct_fields__
    }
    models: tuple[str, ...] | None = settings["models"]
    return Key(
        name=config.name,
        digest=bytes.fromhex(config.sha256) if config.sha256 else hashlib.sha256(config.key.encode()).digest(),
        priority=settings["priority"] or 0,
        weight=DEFAULT_WEIGHT if settings["weight"] is None else settings["weight"],
        models=None if models is None else frozenset(models),
        paths=settings["paths"],
        limits=Limits(
            requests_per_minute=settings["requests_per_minute"] or 0,
            tokens_per_minute=settings["tokens_per_minute"] or 0,
            concurrent=settings["concurrent"] or 0,
        ),
        expires=None if config.expires is None else config.expires.timestamp(),
        sees_all=settings["web_ui"] == "all",
    )


def _check(config: TierConfig, where: str) -> None:
    for name in ("requests_per_minute", "tokens_per_minute", "concurrent"):
        if (getattr(config, name) or 0) < 0:
            raise ConfigError(f"{where}.{name}: expected 0 (no limit) or more")
    for path in config.paths or ():
        if not path.startswith("/") or path.endswith("/"):
            raise ConfigError(f"{where}.paths: {path!r} is no path, for example /v1/embeddings")
    if config.weight is not None and not 0.001 <= config.weight <= 1000:
        raise ConfigError(f"{where}.weight: expected 0.001 to 1000")


class Keyring:
    """Finds the key a client presents.

    Args:
        required: there are keys, though they may not be known yet. Otherwise every client is admitted as ``anonymous``.
    """

    def __init__(self, *, required: bool = False, anonymous: Key = ANONYMOUS) -> None:
        self.required = required
        self._anonymous = anonymous
        self._by_digest: dict[bytes, Key] | None = None if required else {}

    def replace(self, keys: Iterable[Key]) -> None:
        """These are all keys there are from now on."""
        self._by_digest = {key.digest: key for key in keys}

    @property
    def keys(self) -> Iterable[Key]:
        return (self._by_digest or {}).values()

    def named(self, name: str) -> Key | None:
        """The key of that name; None where there is none."""
        return next((key for key in self.keys if key.name == name), None)

    def find(self, headers: Headers) -> Key:
        """The key of a request.

        Raises:
            Refused: 401 without a key, and for one that is unknown or has expired; 503 while no keys are known.
        """
        if not self.required:
            return self._anonymous
        if self._by_digest is None:
            raise Refused(503, "the API keys are not known yet; try again shortly", code="not_ready", retry_after=1)
        presented = b""
        for name, value in headers:
            if name in KEY_HEADERS:
                if name != b"authorization":
                    presented = value.strip()
                elif value.startswith(b"Bearer ") or value[:7].lower() == b"bearer ":
                    presented = value[7:].strip()
                if presented:
                    break
        if not presented:
            raise _denied(
                "You didn't provide an API key. You need to provide your API key in an Authorization header using "
                "Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
            )
        digest = hashlib.sha256(presented).digest()
        # How long the dict takes may depend on the digest, of which a client cannot choose a single bit without
        # knowing a key that has it: it learns nothing about keys. The comparison of the whole is constant-time.
        key = self._by_digest.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            raise _denied("Incorrect API key provided.")
        if key.expires is not None and key.expires <= time.time():
            raise _denied("This API key has expired.")
        return key


def _denied(message: str) -> Refused:
    return Refused(401, message, code="invalid_api_key", headers=_CHALLENGE)
