"""``/v1/models``: the models a client may use, over all services and within what its key allows.

A router that adds nothing to its engines' lists forwards the request to one of them. Otherwise it queries them, at most
every few seconds, and merges the lists.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import msgspec

from blade_protocol import paths
from blade_router.admission.controller import AdmissionController
from blade_router.admission.keys import Key
from blade_router.config.token_header import TokenHeader
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.upstream.errors import BadResponse
from blade_router.http.upstream.get import read_body, send_get
from blade_router.request.models import not_found
from blade_router.request.request import ClientRequest

FRESH_SECONDS = 2.0
"""How long the engines' lists are used before they are queried again."""
RESPONSE_SECONDS = 2.0
MAX_QUERIED = 8
"""Endpoints of a service that are queried, as adapters may differ."""
MOST_BYTES = 4 << 20

Card = dict[str, Any]
"""One model, as OpenAI describes it."""

_encode = msgspec.json.Encoder().encode


class _List(msgspec.Struct):
    data: list[dict[str, Any]] = []


_decode = msgspec.json.Decoder(_List).decode


def is_models(path: str) -> bool:
    """The path lists the models, or names one of them."""
    return path == paths.MODELS or path.startswith(f"{paths.MODELS}/")


class ModelList:
    """Responds to ``/v1/models`` and the paths below it."""

    def __init__(
        self, admission: AdmissionController, endpoints: EndpointSet, token: TokenHeader | None = None
    ) -> None:
        self._admission = admission
        self._endpoints = endpoints
        self._token = token or TokenHeader(None)
        self._created = int(time.time())
        self._cards: dict[str, list[Card]] = {}
        """The last lists of the engines, by service."""
        self._refreshed_at = float("-inf")
        self._refreshing = asyncio.Lock()

    async def respond(self, request: ClientRequest) -> bytes | None:
        """The response to a GET of the list, or of one model; None where an engine's is as good.

        Raises:
            Refused: 401, the key is unknown; 404, there is no such model.
        """
        key = self._admission.keyring.find(request.headers)
        catalog = self._admission.catalog
        if not (catalog.models or catalog.several or key.models is not None):
            return None
        cards = await self._list(key)
        name = unquote(request.path.removeprefix(paths.MODELS)).strip("/")
        if not name:
            return _encode({"object": "list", "data": cards})
        card = next((card for card in cards if card["id"] == name), None)
        if card is None:
            raise not_found(name)
        return _encode(card)

    async def find(self, name: str) -> str | None:
        """The service whose engines list a model; None when none does."""
        await self._refresh()
        return next((service for service, cards in self._cards.items() if any(c["id"] == name for c in cards)), None)

    async def _list(self, key: Key) -> list[Card]:
        """The configuration's models first, in its order, then what engines have beside them."""
        await self._refresh()
        catalog = self._admission.catalog
        listed: dict[str, Card] = {}
        for model in catalog.models:
            own = self._card(model.name, None)
            card = next((card for card in self._cards.get(model.service, []) if card["id"] == model.name), own)
            if key.allows(model.name, *model.aliases):
                listed[model.name] = card
                listed |= {alias: card | {"id": alias, "root": model.name} for alias in model.aliases}
        for service in catalog.services:
            for card in self._cards.get(service, []):
                name = card["id"]
                target = catalog.find(name)
                if target is not None and target.service != service:
                    continue  # requests of this name go elsewhere
                if key.allows(name):
                    listed.setdefault(name, card)
        for name, split in self._admission.splits.items():
            cards = [card for card in self._cards.get(split.service, []) if card["id"] in split.weights]
            if cards and key.allows(name):
                listed.setdefault(name, cards[0] | {"id": name})
        return list(listed.values())

    async def _refresh(self) -> None:
        """Query the engines, unless that was done a moment ago."""
        async with self._refreshing:
            if time.monotonic() - self._refreshed_at < FRESH_SECONDS:
                return
            services = self._admission.catalog.services
            found = await asyncio.gather(*(self._query(service) for service in services))
            # A service of which no engine responded keeps its last list.
            self._cards = {
                service: self._cards.get(service, []) if cards is None else cards
                for service, cards in zip(services, found, strict=True)
            }
            self._refreshed_at = time.monotonic()

    async def _query(self, service: str) -> list[Card] | None:
        """The merged lists of a service's endpoints; None when none responded."""
        endpoints, _ = self._endpoints.candidates((), service)
        responses = await asyncio.gather(
            *(fetch(endpoint, self._token) for endpoint in endpoints[:MAX_QUERIED]), return_exceptions=True
        )
        lists = [response for response in responses if not isinstance(response, BaseException)]
        if not lists:
            return None
        merged: dict[str, Card] = {card["id"]: card for cards in reversed(lists) for card in cards}
        base = next((card["id"] for card in merged.values() if not card.get("parent")), None)
        for name in sorted(frozenset[str]().union(*(endpoint.report.adapters for endpoint in endpoints))):
            merged.setdefault(name, self._card(name, base))
        return list(merged.values())

    def _card(self, name: str, parent: str | None) -> Card:
        """The card of a model that no engine's list has."""
        own = {"id": name, "object": "model", "created": self._created, "owned_by": "bladellm"}
        return own | {"root": name, "parent": parent}


async def fetch(endpoint: Endpoint, token: TokenHeader) -> list[Card]:
    """Query one engine's list.

    Raises:
        UpstreamError, msgspec.DecodeError: no response, or not a list of models.
    """
    connection = await endpoint.pool.connect()
    try:
        async with asyncio.timeout(RESPONSE_SECONDS):
            header = token.lines().decode("latin-1") if endpoint.config.engine == "blade" else ""
            await send_get(connection, endpoint.authority, paths.MODELS, header)
            if connection.status != 200:
                raise BadResponse(f"{paths.MODELS} answered {connection.status}")
            body = await read_body(connection, MOST_BYTES)
    except TimeoutError:
        raise BadResponse(f"{paths.MODELS} took longer than {RESPONSE_SECONDS:g} s") from None
    finally:
        endpoint.pool.discard(connection)
    return list(_named(_decode(body).data))


def _named(cards: Iterable[Card]) -> Iterable[Card]:
    return (card for card in cards if isinstance(card.get("id"), str))
