"""Rules of ``spec.router`` that span fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.quantity import parse_bytes, parse_duration
from blade_operator.spec.rules.rule import Rule

LONGEST: Final = 3600
"""Most seconds of any of the router's times: clients have given up by then."""


LEAST_PART: Final = "1Mi"
"""Routers measure no part that is smaller."""
LEAST_BODY: Final = "1Mi"
LARGEST_BODY: Final = "64Mi"
"""Several of them fit into a router's memory for bodies."""


def _first_byte(spec: LLMServiceSpec) -> str | None:
    return spec.router.retry.first_byte_timeout if spec.router.retry else None


def _stall(spec: LLMServiceSpec) -> str | None:
    return spec.router.retry.stall_timeout if spec.router.retry else None


def _served(name: str, spec: LLMServiceSpec) -> tuple[str, ...]:
    return spec.model.served_names or (name,)


def _names_are_clear(name: str, spec: LLMServiceSpec) -> bool:
    served, models = set(_served(name, spec)), spec.router.models
    aliases = [alias for model in models for alias in model.aliases]
    return (
        {model.name for model in models} <= served and len(set(aliases)) == len(aliases) and not served & set(aliases)
    )


def _time(part: str, field: str, value: Callable[[LLMServiceSpec], str | None], *, least: int = 1) -> Rule:
    """A duration that may be unset; ``part`` is the object it is in, empty for the router's own. ``least``: seconds."""
    place = f"self.{field}"
    # Durations are never negative, so a bound of 0 says nothing.
    lower = f"duration({place}) >= duration('{least}s') && " if least else ""
    within = f"{lower}duration({place}) <= duration('{LONGEST}s')"
    return Rule(
        at=("spec", "router", *((part,) if part else ())),
        field=".".join(["spec", "router", *((part,) if part else ()), field]),
        cel=f"!has({place}) || " + (f"({within})" if lower else within),
        holds=lambda name, spec: (text := value(spec)) is None or least <= parse_duration(text) <= LONGEST,
        message=f"must be at least {least}s and at most 1h" if least else "must be at most 1h",
    )


def _size(field: str) -> str:
    """CEL: a number of bytes, which may be written as one."""
    return f"quantity(string(self.{field}))"


def _within(size: str | int | None, least: str, most: str) -> bool:
    return size is None or parse_bytes(least) <= parse_bytes(size) <= parse_bytes(most)


def _is_served(name: str) -> str:
    """CEL: whether requests may name ``name`` anyway."""
    names = "self.spec.model.servedNames"
    return f"(has({names}) && size({names}) > 0 ? {name} in {names} : {name} == self.metadata.name)"


_NAMES_IN_CEL: Final = (
    "!has(self.spec.router) || !has(self.spec.router.models) || self.spec.router.models.all(m, "
    f"{_is_served('m.name')} && (!has(m.aliases) || m.aliases.all(a, !{_is_served('a')} "
    "&& self.spec.router.models.exists_one(o, has(o.aliases) && a in o.aliases))))"
)

ROUTER_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        at=("spec", "router"),
        field="spec.router.limits",
        cel="!has(self.limits) || !has(self.auth)",
        holds=lambda name, spec: spec.router.limits is None or spec.router.auth is None,
        message="are for services without keys: with auth each key has its own, in the Secret; remove one of the two",
    ),
    Rule(
        at=(),
        field="spec.router.models",
        cel=_NAMES_IN_CEL,
        holds=_names_are_clear,
        message="each name must be one of spec.model.servedNames (the service's name where that is empty), and each "
        "alias neither one of these nor an alias of another model",
    ),
    Rule(
        at=("spec",),
        field="spec.router.hold.maxRequests",
        cel="!has(self.scaling) || !has(self.scaling.idleToZero) || !has(self.router) || !has(self.router.hold) "
        "|| !has(self.router.hold.maxRequests) || self.router.hold.maxRequests > 0",
        holds=lambda name, spec: (
            spec.scaling is None or spec.scaling.idle_to_zero is None or spec.router.hold.max_requests > 0
        ),
        message="must not be 0 with scaling.idleToZero: a held request wakes the service",
    ),
    Rule(
        at=("spec", "router"),
        field="spec.router.maxBodyBytes",
        cel=f"!has(self.maxBodyBytes) || {_size('maxBodyBytes')}.compareTo(quantity('{LEAST_BODY}')) >= 0 && "
        f"{_size('maxBodyBytes')}.compareTo(quantity('{LARGEST_BODY}')) <= 0",
        holds=lambda name, spec: _within(spec.router.max_body_bytes, LEAST_BODY, LARGEST_BODY),
        message=f"must be at least {LEAST_BODY} and at most {LARGEST_BODY}",
    ),
    Rule(
        at=("spec", "router"),
        field="spec.router.maxPartBytes",
        cel=f"!has(self.maxPartBytes) || {_size('maxPartBytes')}.compareTo(quantity('{LEAST_PART}')) >= 0",
        holds=lambda name, spec: parse_bytes(spec.router.max_part_bytes or LEAST_PART) >= parse_bytes(LEAST_PART),
        message=f"must be at least {LEAST_PART}",
    ),
    _time("queue", "maxAge", lambda spec: spec.router.queue.max_age if spec.router.queue else None),
    _time("hold", "maxAge", lambda spec: spec.router.hold.max_age),
    _time("retry", "firstByteTimeout", _first_byte, least=0),
    _time("retry", "stallTimeout", _stall, least=0),
    _time("", "slowStart", lambda spec: spec.router.slow_start, least=0),
    _time("", "streamCommentInterval", lambda spec: spec.router.stream_comment_interval, least=0),
)
