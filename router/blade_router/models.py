"""Which model a request means, and which service has it: names, aliases, defaults, bounds.

A request that needs no change goes on as the bytes that came. One that names an alias, or lacks a field that has a
default, is written anew; only those pay for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from blade_protocol import paths
from blade_protocol.routing import ModelConfig
from blade_router.endpoints import EndpointSet
from blade_router.errors import Refused
from blade_router.fields import RoutingFields, parse_fields
from blade_router.request import ClientRequest

GENERATE = frozenset((paths.CHAT_COMPLETIONS, paths.COMPLETIONS, paths.RESPONSES))
"""Paths whose answers are generated, and which ``defaults`` are for."""
WITHOUT_ANSWER = frozenset((paths.EMBEDDINGS, paths.TOKENIZE, paths.DETOKENIZE))
"""Paths where nothing is generated, as far as is known."""
_TOKEN_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, frozen=True)
class Target:
    """Where a request goes."""

    service: str
    model: ModelConfig | None = None
    """None: one that the configuration does not list."""

    def names(self, asked: str) -> tuple[str, ...]:
        """All names of the model that was asked for under one of them."""
        return (asked, self.model.name, *self.model.aliases) if self.model is not None else (asked,)


class Catalog:
    """The models of the configuration, and the services there are.

    Services are those that endpoints and models name; the one without a name is where everything is that names none.
    """

    def __init__(self, endpoints: EndpointSet, models: Iterable[ModelConfig] = ()) -> None:
        self.models = tuple(models)
        self._endpoints = endpoints
        self._targets = {
            name: Target(model.service, model) for model in self.models for name in (model.name, *model.aliases)
        }
        self.services = sorted(
            {endpoint.service for endpoint in endpoints.all} | {model.service for model in self.models}
        ) or [""]
        self._only = Target(self.services[0]) if len(self.services) == 1 else None

    @property
    def several(self) -> bool:
        """There is more than one service."""
        return self._only is None

    def find(self, name: str | None) -> Target | None:
        """Where requests for a model go; None for a name that nobody knows. ``name`` is None where none was said.

        A name that is not listed is left to the engines of the only service, as adapters come and go. Where there are
        several services, it may be one that engines of one of them have told of.
        """
        if name is not None and (target := self._targets.get(name)):
            return target
        if self._only is not None:
            return self._only
        if name:
            for endpoint in self._endpoints.all:
                if name in endpoint.models or name in endpoint.adapters:
                    return Target(endpoint.service)
        return None

    def nameless(self, request: ClientRequest) -> Target:
        """Where a request goes that says no model, and there are several services.

        Raises:
            Refused: 400, it has to say one.
        """
        if request.method == "POST":
            raise Refused(
                400, "you must provide a model parameter: this router serves several models", code="missing_model"
            )
        return Target(self.services[0])


def not_found(name: str) -> Refused:
    """OpenAI's answer, the same for a model that does not exist and for one that a key may not use."""
    return Refused(
        404,
        f"The model `{name}` does not exist or you do not have access to it.",
        code="model_not_found",
        kind="invalid_request_error",
    )


def prepare(request: ClientRequest, target: Target, least_priority: int | None) -> None:
    """Hold a request to its model's bounds, and write into it what has to be there.

    Args:
        least_priority: a request that asks for a lower number (an earlier turn) gets this one; None: it may.

    Raises:
        Refused: 400, it asks for more tokens than the model's bound.
    """
    fields = request.fields
    changes: dict[str, Any] = {}
    if least_priority is not None and fields.priority is not None and fields.priority < least_priority:
        changes["priority"] = least_priority
    defaults: dict[str, Any] = {}
    if (model := target.model) is not None:
        asked = fields.token_limit
        if model.max_tokens and asked is not None and asked > model.max_tokens:
            raise Refused(
                400,
                f"max_tokens is {asked}, and the limit of the model `{model.name}` is {model.max_tokens}; ask for less",
                code="max_tokens_exceeded",
            )
        if fields.model != model.name and fields.model is not None:
            changes["model"] = model.name
        if model.defaults and request.path in GENERATE:
            defaults = model.defaults
    if changes or defaults:
        _rewrite(request, changes, defaults)


def _rewrite(request: ClientRequest, changes: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Set these fields, and those of ``defaults`` that are not there; the body stays as it is when all are."""
    try:
        body = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # Where nothing is rewritten, only the fields that count are looked at, and the rest is the engine's to judge.
        raise Refused(400, f"the request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        return
    missing = {name: value for name, value in _defaults_for(request.path, defaults, body) if name not in body}
    if not changes and not missing:
        return
    body.update(missing)
    body.update(changes)
    request.body = _encode(body)
    request.fields = parse_fields(request.body)


def _defaults_for(path: str, defaults: dict[str, Any], body: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """The defaults under the names the API has for them: an answer's length has three, of which one is enough."""
    limited = any(name in body for name in _TOKEN_LIMITS)
    for name, value in defaults.items():
        if name in _TOKEN_LIMITS:
            if not limited:
                yield ("max_output_tokens" if path == paths.RESPONSES else name), value
        else:
            yield name, value


def wanted_tokens(fields: RoutingFields, default: int) -> int:
    """How many tokens a request's answers may have together; ``default`` for one answer that has no limit."""
    limit = fields.token_limit
    if limit is None:
        limit = default
    return limit * fields.answers
