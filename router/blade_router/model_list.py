"""``/v1/models``: what a client may ask for, over all services and within what its key allows.

A router that adds nothing to what its engines say lets one of them answer. Otherwise it asks them, at most every few
seconds, and puts the lists together.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import msgspec

from blade_protocol import paths
from blade_router.admission.admission import Admission
from blade_router.admission.keys import Key
from blade_router.asking import ask, body_of
from blade_router.endpoints import Endpoint, EndpointSet
from blade_router.models import not_found
from blade_router.request import ClientRequest
from blade_router.upstream_errors import BadAnswer

FRESH_SECONDS = 2.0
"""How long the engines' lists are used before they are asked again."""
ANSWER_SECONDS = 2.0
ASKED = 8
"""Endpoints of a service that are asked, as adapters may differ."""
MOST_BYTES = 4 << 20

Card = dict[str, Any]
"""One model, as OpenAI describes it."""

_encode = msgspec.json.Encoder().encode


class _List(msgspec.Struct):
    data: list[dict[str, Any]] = []


_decode = msgspec.json.Decoder(_List).decode


class ModelList:
    """Answers ``/v1/models`` and what is below it."""

    def __init__(self, admission: Admission, endpoints: EndpointSet) -> None:
        self._admission = admission
        self._endpoints = endpoints
        self._created = int(time.time())
        self._cards: dict[str, list[Card]] = {}
        """What engines listed last, by service."""
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    async def answer(self, request: ClientRequest) -> bytes | None:
        """The answer to a GET of the list, or of one model; None where an engine's is as good.

        Raises:
            Refused: 401, whoever asks is nobody; 404, there is no such model.
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
            own: Card = {"id": model.name, "object": "model", "created": self._created, "owned_by": "bladellm"}
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
        return list(listed.values())

    async def _refresh(self) -> None:
        """Ask the engines, unless that was done a moment ago."""
        async with self._asking:
            if time.monotonic() - self._asked_at < FRESH_SECONDS:
                return
            services = self._admission.catalog.services
            found = await asyncio.gather(*(self._ask(service) for service in services))
            # A service of which no engine answered keeps what was known of it.
            self._cards = {
                service: self._cards.get(service, []) if cards is None else cards
                for service, cards in zip(services, found, strict=True)
            }
            self._asked_at = time.monotonic()

    async def _ask(self, service: str) -> list[Card] | None:
        """The lists of a service's endpoints, put together; None when none answered."""
        endpoints, _ = self._endpoints.candidates((), service)
        answers = await asyncio.gather(*(fetch(endpoint) for endpoint in endpoints[:ASKED]), return_exceptions=True)
        lists = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not lists:
            return None
        merged: dict[str, Card] = {card["id"]: card for cards in reversed(lists) for card in cards}
        base = next((card["id"] for card in merged.values() if not card.get("parent")), None)
        for name in sorted(frozenset[str]().union(*(endpoint.adapters for endpoint in endpoints))):
            own = {"id": name, "object": "model", "created": self._created, "owned_by": "bladellm", "parent": base}
            merged.setdefault(name, own)
        return list(merged.values())


async def fetch(endpoint: Endpoint) -> list[Card]:
    """What an engine lists.

    Raises:
        UpstreamError, msgspec.DecodeError: no answer, or not a list of models.
    """
    connection = await endpoint.pool.connect()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await ask(connection, endpoint.authority, paths.MODELS)
            if connection.status != 200:
                raise BadAnswer(f"{paths.MODELS} answered {connection.status}")
            body = await body_of(connection, MOST_BYTES)
    except TimeoutError:
        raise BadAnswer(f"{paths.MODELS} took longer than {ANSWER_SECONDS:g} s") from None
    finally:
        endpoint.pool.discard(connection)
    return list(_named(_decode(body).data))


def _named(cards: Iterable[Card]) -> Iterable[Card]:
    return (card for card in cards if isinstance(card.get("id"), str))
