"""Which model a request means, and which service has it: names, aliases, defaults, bounds.

A request that needs no change goes on as the bytes that came. One that names an alias, or lacks a field that has a
default, is written anew; only those pay for it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec

from blade_protocol import paths
from blade_protocol.routing import Limits, ModelConfig
from blade_router.endpoints import EndpointSet
from blade_router.errors import Refused
from blade_router.fields import RoutingFields, parse_fields
from blade_router.request import ClientRequest

WITHOUT_ANSWER = frozenset((paths.EMBEDDINGS, paths.TOKENIZE, paths.DETOKENIZE))
"""Paths where nothing is generated, as far as is known."""
_TOKEN_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_LENGTHS = {
    paths.CHAT_COMPLETIONS: ("max_completion_tokens", "max_tokens"),
    paths.COMPLETIONS: ("max_tokens",),
    paths.RESPONSES: ("max_output_tokens",),
}
"""The names an answer's length has in each API. The last one every engine knows."""
_BELOW_MODELS = paths.MODELS + "/"
_BELOW_RESPONSES = paths.RESPONSES + "/"
_DOTS = re.compile(r"/\.{0,2}/|/\.{1,2}$")
_NOT_PLAIN = re.compile(rf"[%#]|{_DOTS.pattern}")

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
        self._unsaid = self._only
        """Where a request goes that says no model; None: it has to say one."""
        if self._only is not None:
            if len(self.models) == 1:
                self._unsaid = Target(self.services[0], self.models[0])
            elif any(model.limits != Limits() or model.max_tokens or model.defaults for model in self.models):
                self._unsaid = None

    @property
    def several(self) -> bool:
        """There is more than one service."""
        return self._only is None

    def find(self, name: str | None) -> Target | None:
        """Where requests for a model go; None for a name that nobody knows. ``name`` is None or empty where none was
        said: then it is the only model there is. Where there are several, none of which asks anything of requests, the
        engines of the only service decide.

        A name that is not listed is left to the engines of the only service, as adapters come and go. Where there are
        several services, it may be one that engines of one of them have told of.
        """
        if not name:
            return self._unsaid
        if target := self._targets.get(name):
            return target
        if self._only is not None:
            return self._only
        for endpoint in self._endpoints.all:
            if name in endpoint.models or name in endpoint.adapters:
                return Target(endpoint.service)
        return None

    def nameless(self, request: ClientRequest) -> Target:
        """Where a request goes that says no model, and there are several.

        Raises:
            Refused: 400, it has to say one.
        """
        if request.method != "POST" or request.path.startswith(_BELOW_RESPONSES):  # e.g. to cancel one
            return Target(self.services[0])
        message = "you must provide a model parameter: this router serves several models"
        if self._only is not None:  # the same for everybody: who may not use all of them is asked for one before
            message += f" ({', '.join(model.name for model in self.models)})"
        raise Refused(400, message, code="missing_model")

    def orders(self, service: str) -> bool:
        """All engines of a service order requests by their priority. Others may refuse one that has any."""
        return all(endpoint.engine == "blade" for endpoint in self._endpoints.all if endpoint.service == service)


def not_found(name: str) -> Refused:
    """OpenAI's answer, the same for a model that does not exist and for one that a key may not use."""
    return Refused(
        404,
        f"The model `{name}` does not exist or you do not have access to it.",
        code="model_not_found",
        kind="invalid_request_error",
    )


def proper_path(path: str) -> None:
    """See that a path is the one it looks like: what is decided by path must hold for what an engine makes of it.

    Raises:
        Refused: 400, it has ``.``, ``..`` or nothing as a part, or characters that are encoded, in other than a
            model's name.
    """
    if path in _LENGTHS or _NOT_PLAIN.search(path) is None:
        return
    if path.startswith(_BELOW_MODELS) and "#" not in path and _DOTS.search(unquote(path)) is None:
        return
    raise Refused(400, f"the path {path} is not in its plain form; send it as documented", code="invalid_path")


def prepare(request: ClientRequest, target: Target, least_priority: int | None, *, ordered: bool = True) -> None:
    """Hold a request to its model's bounds, and write into it what has to be there.

    Args:
        least_priority: a request that asks for a lower number (an earlier turn) gets this one; None: it may.
        ordered: engines read a priority, and take 0 where there is none.

    Raises:
        Refused: 400, it asks for more tokens than the model's bound.
    """
    fields = request.fields
    model = target.model
    names = _LENGTHS.get(request.path) if request.method == "POST" else None
    changes: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    if least_priority is not None:
        own: Any = fields.priority
        if own is None and names is not None:
            own = model.defaults.get("priority") if model is not None else None
            if own is None and ordered:
                own = 0
        if isinstance(own, int) and own < least_priority:
            changes["priority"] = least_priority
    if model is not None:
        asked = fields.token_limit
        if model.max_tokens and asked is not None and asked > model.max_tokens:
            raise Refused(
                400,
                f"max_tokens is {asked}, and the limit of the model `{model.name}` is {model.max_tokens}; ask for less",
                code="max_tokens_exceeded",
            )
        if fields.model and fields.model != model.name:
            changes["model"] = model.name
        if names is not None:
            defaults = model.defaults
            if model.max_tokens and all(getattr(fields, name) is None for name in names):
                defaults = _bounded(defaults, model.max_tokens)
    if changes or defaults:
        _rewrite(request, changes, defaults, names or ())


def _bounded(defaults: dict[str, Any], bound: int) -> dict[str, Any]:
    """The defaults with a length, which is that of the model's bound where they have none, or a higher one."""
    lengths = {name: value for name in _TOKEN_LIMITS if (value := defaults.get(name)) is not None}
    for name, value in lengths.items():
        lengths[name] = min(value, bound) if isinstance(value, int) else bound
    return defaults | (lengths or {"max_tokens": bound})


def _rewrite(request: ClientRequest, changes: dict[str, Any], defaults: dict[str, Any], lengths: Sequence[str]) -> None:
    """Set these fields, and those of ``defaults`` that are not there; the body stays as it is when all are."""
    try:
        body = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # Where nothing is rewritten, only the fields that count are looked at, and the rest is the engine's to judge.
        raise Refused(400, f"the request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        return
    missing = dict(_missing(defaults, body, lengths))
    if not changes and not missing:
        return
    body.update(missing)
    body.update(changes)
    request.body = _encode(body)
    request.fields = parse_fields(request.body)


def _missing(defaults: dict[str, Any], body: dict[str, Any], lengths: Sequence[str]) -> Iterable[tuple[str, Any]]:
    """The defaults a body lacks. An answer's length has up to two names in an API, ``lengths``; one is enough, and
    null is none."""
    limited = any(body.get(name) is not None for name in lengths)
    for name, value in defaults.items():
        if name not in _TOKEN_LIMITS:
            if name not in body:
                yield name, value
        elif not limited and value is not None:
            limited = True
            yield (name if name in lengths else lengths[-1]), value


def wanted_tokens(fields: RoutingFields, default: int) -> int:
    """How many tokens a request's answers may have together; ``default`` for one answer that has no limit."""
    limit = fields.token_limit
    if limit is None:
        limit = default
    return limit * fields.answers
