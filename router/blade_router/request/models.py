"""Resolving the model of a request to a service: names, aliases, defaults, bounds.

A request that needs no change is forwarded as the bytes that came. One that names an alias, or lacks a field that has a
default, is rewritten; only those cost time.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from blade_protocol import paths
from blade_protocol.routing import AdapterConfig, EngineKind, Limits, ModelConfig
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.errors import Refused
from blade_router.request.fields import RoutingFields, given, not_json, raw_fields
from blade_router.request.output_size import outputs, token_limit
from blade_router.request.request import ClientRequest
from blade_router.request.response_ids import BELOW_RESPONSES, GOING_ON, tag_in
from blade_router.request.rewrite import insert_text, set_fields
from blade_router.request.routes import SCORING, check_kinds

WITHOUT_OUTPUT = frozenset(
    (paths.EMBEDDINGS, paths.TOKENIZE, paths.DETOKENIZE, paths.COUNT_TOKENS, paths.INPUT_TOKENS, *SCORING)
)
"""Paths where nothing is generated, as far as is known."""
_TOKEN_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_LENGTHS = {
    paths.CHAT_COMPLETIONS: ("max_completion_tokens", "max_tokens"),
    paths.COMPLETIONS: ("max_tokens",),
    paths.RESPONSES: ("max_output_tokens",),
    paths.MESSAGES: ("max_tokens",),
}
"""The names of the output length's limit in each API. Every engine knows the last one."""

SALTED = frozenset(
    (paths.CHAT_COMPLETIONS, paths.COMPLETIONS, paths.RESPONSES, paths.EMBEDDINGS, *SCORING, "/v1/classify"),
)
"""Paths whose bodies may have a ``cache_salt``: so BladeLLM, vLLM and SGLang call it."""

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, frozen=True)
class Target:
    """The service a request goes to, and its model."""

    service: str
    model: ModelConfig | None = None
    """None: one that the configuration does not list."""

    def names(self, requested: str) -> tuple[str, ...]:
        """All names of the model that was requested under one of them."""
        return (requested, self.model.name, *self.model.aliases) if self.model is not None else (requested,)


class Catalog:
    """The models of the configuration, and the services there are.

    Services are those that endpoints and models name; the one without a name is where everything is that names none.
    """

    def __init__(
        self, endpoints: EndpointSet, models: Iterable[ModelConfig] = (), adapters: Iterable[AdapterConfig] = ()
    ) -> None:
        self.models = tuple(models)
        self._endpoints = endpoints
        self._targets = {
            name: Target(model.service, model) for model in self.models for name in (model.name, *model.aliases)
        }
        for adapter in adapters:
            for name in (adapter.name, adapter.model or adapter.name):
                self._targets.setdefault(name, Target(adapter.service))
        self._kinds: dict[str, set[EngineKind]] = {}
        for endpoint in endpoints.all:
            self._kinds.setdefault(endpoint.config.service, set()).add(endpoint.config.engine)
        self.services = sorted(
            {endpoint.config.service for endpoint in endpoints.all} | {model.service for model in self.models}
        ) or [""]
        self._only = Target(self.services[0]) if len(self.services) == 1 else None
        self._default = self._only
        """The target of a request that names no model; None: it has to name one."""
        if self._only is not None:
            if len(self.models) == 1:
                self._default = Target(self.services[0], self.models[0])
            elif any(model.limits != Limits() or model.max_tokens or model.defaults for model in self.models):
                self._default = None

    @property
    def several(self) -> bool:
        """There is more than one service."""
        return self._only is None

    def find(self, name: str | None) -> Target | None:
        """The target of requests for a model; None for an unknown name. ``name`` is None or empty where none was given:
        then it is the only model there is. Where there are several, none of which has limits or defaults, the engines
        of the only service decide.

        A name that is not listed is left to the engines of the only service, as adapters come and go. Where there are
        several services, it may be one that engines of one of them have reported.
        """
        if not name:
            return self._default
        if target := self._targets.get(name):
            return target
        if self._only is not None:
            return self._only
        for endpoint in self._endpoints.all:
            if name in endpoint.report.models or name in endpoint.report.adapters:
                return Target(endpoint.config.service)
        return None

    def nameless(self, request: ClientRequest) -> Target:
        """The target of a request that names no model, where there are several.

        Raises:
            Refused: 400, it has to name one.
        """
        stored = request.path.startswith(BELOW_RESPONSES) and request.path not in GOING_ON
        if request.method != "POST" or stored:  # e.g. to cancel one
            tag = self._endpoints.moved_responses.tag_of(request.response_id) or tag_in(request.response_id)
            found = (each.config.service for each in self._endpoints.all if tag and each.response_tag == tag)
            return Target(next(found, self.services[0]))
        message = "you must provide a model parameter: this router serves several models"
        if self._only is not None:  # the same for every client: a key that may not use all of them was refused before
            message += f" ({', '.join(model.name for model in self.models)})"
        raise Refused(400, message, code="missing_model")

    def check_route(self, path: str, service: str) -> None:
        """Refuse a path that the engines of a service do not have.

        Raises:
            Refused: 404.
        """
        check_kinds(path, self._kinds.get(service, ()))

    def orders(self, service: str) -> bool:
        """All engines of a service schedule by priority. Others may refuse a request that has any."""
        configs = (endpoint.config for endpoint in self._endpoints.all)
        return all(config.engine == "blade" for config in configs if config.service == service)


def not_found(name: str) -> Refused:
    """OpenAI's error, the same for a model that does not exist and for one that a key may not use."""
    return Refused(
        404,
        f"The model `{name}` does not exist or you do not have access to it.",
        code="model_not_found",
        kind="invalid_request_error",
        param="model",
    )


def prepare(
    request: ClientRequest,
    target: Target,
    least_priority: int | None,
    *,
    ordered: bool = True,
    salt: str = "",
    salts_messages: bool = False,
    adapter: str = "",
) -> None:
    """Apply its model's bounds and defaults to a request.

    Args:
        least_priority: replaces a lower number (an earlier turn) in the request; None: any is allowed.
        ordered: engines read a priority, and take 0 where there is none.
        adapter: which one of those that share the requested name; empty: the name is no such one.
        salt: keeps the prefix cache of this client apart from others', whatever salt it sends; empty: it is shared.
        salts_messages: engines read a salt in bodies of ``/v1/messages`` as well, as BladeLLM's do.

    Raises:
        Refused: 400, it requests more tokens than the model's bound; 403, its prompt cannot be kept apart.
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
        requested = token_limit(fields)
        if model.max_tokens and requested is not None and requested > model.max_tokens:
            raise Refused(
                400,
                f"max_tokens is {requested}, and the limit of the model `{model.name}` is {model.max_tokens}; "
                "ask for less",
                code="max_tokens_exceeded",
            )
        if fields.model and fields.model != model.name:
            changes["model"] = model.name
        if names is not None:
            defaults = model.defaults
            if model.max_tokens and all(getattr(fields, name) is None for name in names):
                defaults = _bounded(defaults, model.max_tokens)
    if adapter and fields.model != adapter:
        changes["model"] = adapter
    if salt and (request.path in SALTED or (salts_messages and request.path == paths.MESSAGES)):
        own_salt = fields.cache_salt
        if own_salt is not msgspec.UNSET:
            changes["cache_salt"] = hashlib.sha256(f"{salt} {own_salt or ''}".encode()).hexdigest()[:32]
            salt = ""
    elif salt and request.path == paths.MESSAGES:
        message = (
            f"{paths.MESSAGES} cannot be used with an API key, as engines cannot keep its prompts apart in their "
            "caches; use /v1/chat/completions, or have the prefix cache shared (share_prefix_cache)"
        )
        raise Refused(403, message, code="prefix_cache_not_shared", kind="permission_error")
    else:
        salt = ""
    if changes or defaults:
        _rewrite(request, changes, defaults, names or ())
    if salt:
        insert_text(request, "cache_salt", salt)
        request.fields = msgspec.structs.replace(request.fields, cache_salt=salt)


def _bounded(defaults: dict[str, Any], bound: int) -> dict[str, Any]:
    """The defaults with a length, which is that of the model's bound where they have none, or a higher one."""
    lengths = {name: value for name in _TOKEN_LIMITS if (value := defaults.get(name)) is not None}
    for name, value in lengths.items():
        lengths[name] = min(value, bound) if isinstance(value, int) else bound
    return defaults | (lengths or {"max_tokens": bound})


def _rewrite(request: ClientRequest, changes: dict[str, Any], defaults: dict[str, Any], lengths: Sequence[str]) -> None:
    """Set these fields, and those of ``defaults`` that are not there; the body stays as it is when all are."""
    text = request.body if request.abridged is None else request.abridged.json
    try:
        there = raw_fields(text, tuple(dict.fromkeys((*changes, *defaults, *lengths))))
    except msgspec.ValidationError:
        return  # no object: the engine's to refuse
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error) from None
    values = dict(_missing(defaults, there, lengths)) | changes
    if values:
        set_fields(request, {name: _encode(value) for name, value in values.items()}, there)


def _missing(
    defaults: dict[str, Any], there: Mapping[str, msgspec.Raw], lengths: Sequence[str]
) -> Iterable[tuple[str, Any]]:
    """The defaults a body lacks. The output length has up to two names in an API, ``lengths``; one is enough, and
    null is none."""
    limited = any(name in there and given(there[name]) for name in lengths)
    for name, value in defaults.items():
        if name not in _TOKEN_LIMITS:
            if name not in there:
                yield name, value
        elif not limited and value is not None:
            limited = True
            yield (name if name in lengths else lengths[-1]), value


def output_token_limit(fields: RoutingFields, default: int) -> int:
    """How many tokens a request's outputs may have together; ``default`` for one output that has no limit."""
    limit = token_limit(fields)
    if limit is None:
        limit = default
    return limit * outputs(fields)
