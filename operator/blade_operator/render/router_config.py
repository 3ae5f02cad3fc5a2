"""The router's configuration in its ConfigMap: everything that the router reloads without a restart.

Defaults of the protocol are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import NODEFAULT

from blade_operator.spec import router_fields as fields
from blade_operator.spec.adapters.fields import Adapter
from blade_operator.spec.parse import LLMService
from blade_operator.spec.quantity import parse_bytes, parse_duration
from blade_protocol.routing import (
    AdapterConfig,
    HoldConfig,
    Limits,
    ModelConfig,
    PolicyName,
    QueueConfig,
    RouterConfig,
    ShadowConfig,
)


def router_json(
    service: LLMService, weights: Mapping[str, float] | None = None, shadow: ShadowConfig | None = None
) -> str:
    """The file's text."""
    return msgspec.json.encode(_without_defaults(router_config(service, weights, shadow)), order="sorted").decode()


def router_config(
    service: LLMService, weights: Mapping[str, float] | None = None, shadow: ShadowConfig | None = None
) -> RouterConfig:
    """The spec as configuration of the router; endpoints come from the Service.

    Args:
        weights: of revisions, while one is a canary.
        shadow: which of them gets copies of requests.
    """
    router = service.spec.router
    return RouterConfig(
        policy=policy_name(router.policy),
        models=tuple(_model(name, service) for name in service.served_names),
        queue=_queue(router.queue),
        # An image of the user's own may be too old to know of it, and would refuse the whole configuration.
        hold=_hold(service),
        anonymous=_limits(router.limits),
        share_prefix_cache=router.auth is not None and router.auth.share_prefix_cache,
        adapters=() if router.image else tuple(map(_adapter, service.spec.adapters)),
        cors_origins=router.cors.allow_origins if router.cors else (),
        canary=dict(weights or {}),
        shadow=shadow,
    )


def policy_name(policy: fields.Policy) -> PolicyName:
    """``leastRequest`` is the router's ``least-request``."""
    name: PolicyName = msgspec.convert(re.sub("[A-Z]", lambda match: f"-{match[0].lower()}", policy), PolicyName)
    return name


def _model(name: str, service: LLMService) -> ModelConfig:
    spec = next((model for model in service.spec.router.models if model.name == name), None)
    if spec is None:
        return ModelConfig(name=name)
    return ModelConfig(
        name=name,
        aliases=spec.aliases,
        defaults=spec.defaults,
        max_tokens=spec.max_tokens or 0,
        limits=_limits(spec.limits),
    )


def _adapter(adapter: Adapter) -> AdapterConfig:
    return AdapterConfig(name=adapter.name, model=adapter.model or "", weight=float(adapter.weight))


def _limits(limits: fields.Limits | None) -> Limits:
    if limits is None:
        return Limits()
    return Limits(
        requests_per_minute=limits.requests_per_minute or 0,
        tokens_per_minute=limits.tokens_per_minute or 0,
        concurrent=limits.concurrent or 0,
    )


def _queue(queue: fields.Queue | None) -> QueueConfig:
    if queue is None:
        return QueueConfig()
    return QueueConfig(
        enabled=queue.enabled,
        endpoint_requests=queue.endpoint_requests or 0,
        key_share=float(queue.key_share),
        max_requests=queue.max_requests,
        max_bytes=parse_bytes(queue.max_bytes),
        max_age=parse_duration(queue.max_age),
    )


def _hold(service: LLMService) -> HoldConfig:
    scaling, hold = service.spec.scaling, service.spec.router.hold
    # An image of the user's own may be too old to know of these, and would refuse the whole configuration.
    ours = not service.spec.router.image
    wakes = scaling is not None and scaling.wakes
    driven = wakes or (scaling is not None and scaling.mode == "External")  # somebody may start an engine
    return HoldConfig(
        scaled_to_zero=ours and service.spec.replicas == 0 and not driven,
        wakes=ours and wakes,
        max_requests=hold.max_requests,
        max_bytes=parse_bytes(hold.max_bytes),
        max_age=parse_duration(hold.max_age),
    )


def _without_defaults(value: Any) -> Any:
    """``value`` as JSON data without what equals its default."""
    if isinstance(value, tuple):
        return [_without_defaults(item) for item in value]
    if not isinstance(value, msgspec.Struct):
        return value
    found = {}
    for field in msgspec.structs.fields(value):
        item = getattr(value, field.name)
        default = field.default if field.default_factory is NODEFAULT else field.default_factory()
        if item != default:
            found[field.name] = _without_defaults(item)
    return found
