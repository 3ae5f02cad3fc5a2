"""Whom the API server's aggregation layer (its "front proxy") speaks for.

The API server authenticates each user, then sends the request on with a client certificate of its own and the user's
name and groups in headers. Which certificates and headers these are is in the ConfigMap
``extension-apiserver-authentication`` of ``kube-system``, which every API server maintains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import unquote

import msgspec

from blade_operator.model.objects import Object

CONFIG_MAP_PATH: Final = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
MOST_GROUPS: Final = 256
"""Groups, and values of extra fields, of one user."""


class Unauthenticated(Exception):
    """It is not known for whom a request is, for the reason in this exception."""


class Headers(Protocol):
    """Headers of a request; names are case-insensitive, and one may occur several times."""

    def getall(self, name: str, default: list[str], /) -> list[str]: ...

    def items(self) -> Iterable[tuple[str, str]]: ...


@dataclass(frozen=True, slots=True)
class User:
    """Who made a request, as the API server found."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """Certificates and headers of the aggregation layer."""

    authorities: str
    """PEM: who signs its client certificates."""
    names: frozenset[str]
    """Common names that these certificates may have; empty: any."""
    user_headers: tuple[str, ...]
    uid_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...]

    @staticmethod
    def of(config_map: Object) -> FrontProxy:
        """What the API server's ConfigMap says.

        Raises:
            ValueError: it says nothing of a front proxy: aggregation is not set up.
        """
        data: dict[str, str] = config_map.get("data") or {}
        authorities = data.get("requestheader-client-ca-file", "")
        users = _list(data, "requestheader-username-headers")
        if not authorities or not users:
            raise ValueError(
                "ConfigMap kube-system/extension-apiserver-authentication names no front proxy: the API server needs "
                "--requestheader-client-ca-file, --requestheader-username-headers, --proxy-client-cert-file and "
                "--proxy-client-key-file to aggregate other APIs"
            )
        return FrontProxy(
            authorities,
            frozenset(_list(data, "requestheader-allowed-names")),
            users,
            _list(data, "requestheader-uid-headers"),
            _list(data, "requestheader-group-headers"),
            tuple(prefix.lower() for prefix in _list(data, "requestheader-extra-headers-prefix")),
        )

    def user(self, common_name: str, headers: Headers) -> User:
        """For whom a request is made, which came over a connection with a certificate of that name.

        The caller has verified that one of `authorities` signed the certificate.

        Raises:
            Unauthenticated: the certificate is not the front proxy's, or the request names no user.
        """
        if self.names and common_name not in self.names:
            raise Unauthenticated(f"the client certificate is {common_name!r}'s, not the API server's front proxy's")
        name = _first(headers, self.user_headers)
        if not name:
            raise Unauthenticated("the API server's front proxy names no user")
        groups = [group for header in self.group_headers for group in headers.getall(header, [])]
        extra: dict[str, list[str]] = {}
        for header, value in headers.items():
            prefix = next((each for each in self.extra_prefixes if header.lower().startswith(each)), None)
            if prefix is not None:
                extra.setdefault(unquote(header[len(prefix) :].lower()), []).append(value)
        if len(groups) + sum(map(len, extra.values())) > MOST_GROUPS:
            raise Unauthenticated(f"the user has more than {MOST_GROUPS} groups and extra fields")
        uid = _first(headers, self.uid_headers)
        return User(name, uid, tuple(groups), {key: tuple(values) for key, values in extra.items()})


def _first(headers: Headers, names: tuple[str, ...]) -> str:
    return next((values[0] for name in names if (values := headers.getall(name, [])) and values[0]), "")


def _list(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    """A field with a JSON list of texts; empty where it is missing."""
    try:
        return msgspec.json.decode(data.get(key) or "[]", type=tuple[str, ...])
    except msgspec.DecodeError as error:
        raise ValueError(f"ConfigMap kube-system/extension-apiserver-authentication: {key}: {error}") from error
