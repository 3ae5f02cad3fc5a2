"""``status.cost``: what the last hour cost, by what engines were there and what tokens routers counted.

It is written at most once a minute, and only when a figure has changed by 2 %, or tokens of five minutes would have to
be remembered; besides when there are other engines, which is written anyway.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.spec.pricing_fields import Pricing
from blade_operator.status.inputs import StatusInputs
from blade_operator.status.usage import Ledger, Look, Usage, add, dump, load, used
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER

LEAST_SECONDS: Final = 60.0
"""Of which there are figures, and between two writes."""
_REMEMBERED: Final = 300.0
"""Seconds after which counted tokens are written, whether a figure has changed or not."""
_NEAR: Final = Decimal("0.02")
"""Share by which a figure may differ from the written one, which then stays."""
_DIGITS: Final = 3
"""Significant ones of amounts."""
_MONEY: Final = ("perHour", "perMillionTokens", "perMillionCompletionTokens", "engineHours")
_TOKENS: Final = ("promptTokens", "completionTokens")


def is_cost_due(service: Object, at: float) -> bool:
    """Whether the figures of a service with prices are so old that routers are to be asked for new ones. The object
    may be of any form."""
    spec, status = service.get("spec"), service.get("status")
    if not isinstance(spec, dict) or not spec.get("pricing"):
        return False
    before = status.get("cost") if isinstance(status, dict) else None
    written = podutil.parse_time(before.get("observedAt")) if isinstance(before, dict) else None
    return written is None or not 0 <= at - written.timestamp() < LEAST_SECONDS


def cost(inputs: StatusInputs, now: datetime) -> dict[str, Any] | None:
    """The figures; those that were written last while there is nothing new to say, or the spec is invalid."""
    before: dict[str, Any] | None = inputs.last_status.get("cost")
    if inputs.service is None:
        return before
    if (pricing := inputs.service.spec.pricing) is None:
        return None
    at, known = now.timestamp(), load(str((before or {}).get("state", "")))
    look = _look(inputs, at)
    due = inputs.signals is not None and is_cost_due(inputs.obj, at)
    if known is not None and known.engines == look.engines and not due:
        return before
    ledger = add(known, look)
    price = price_of_engine(pricing, inputs.service.spec.engine.gpus.count)
    found = figures(used(ledger), price, pricing.currency, before or {})
    if before is not None and known is not None and not _is_new(before, found, known, ledger):
        return before
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**found, "observedAt": stamp, "state": dump(ledger)}


def price_of_engine(pricing: Pricing, gpus: int) -> Decimal:
    """Of an hour of one engine with so many GPUs."""
    if pricing.per_engine_hour is not None:
        return Decimal(pricing.per_engine_hour)
    return Decimal(pricing.per_gpu_hour or 0) * gpus


def figures(usage: Usage, price: Decimal, currency: str, before: dict[str, Any]) -> dict[str, Any]:
    """What is said of ``usage``, rounded; a figure that is near that of ``before`` stays as it is there.

    Without a minute of data there are none; without tokens nothing is said of their price.
    """
    if usage.seconds < LEAST_SECONDS:
        return {"currency": currency}
    hours = Decimal(usage.engine_seconds) / 3600
    money = hours * price
    exact: dict[str, Decimal] = {
        "perHour": money * 3600 / Decimal(usage.seconds),
        "engineHours": hours,
        "promptTokens": Decimal(usage.prompt),
        "completionTokens": Decimal(usage.completion),
    }
    if usage.tokens:
        exact["perMillionTokens"] = money * 1_000_000 / usage.tokens
    if usage.completion:
        exact["perMillionCompletionTokens"] = money * 1_000_000 / usage.completion
    same = before.get("currency") == currency
    rounded = {name: _rounded(before.get(name) if same else None, value) for name, value in exact.items()}
    return {
        "currency": currency,
        "window": _window(usage.seconds),
        **{name: rounded[name] for name in _MONEY if name in rounded},
        **{name: int(Decimal(rounded[name])) for name in _TOKENS if Decimal(rounded[name])},
    }


def _look(inputs: StatusInputs, at: float) -> Look:
    routers = [pod["metadata"]["name"] for pod in inputs.pods if podutil.role(pod) == ROLE_ROUTER]
    engines = sum(podutil.role(pod) == ROLE_ENGINE and _takes_a_machine(pod) for pod in inputs.pods)
    return Look(at, engines, routers, inputs.signals or {})


def _takes_a_machine(pod: Object) -> bool:
    """Whether it has a place and has not ended: one that downloads, stands by or drains costs as any other."""
    return not podutil.is_finished(pod) and podutil.condition(pod, "PodScheduled").get("status") != "False"


def _is_new(before: dict[str, Any], found: dict[str, Any], known: Ledger, ledger: Ledger) -> bool:
    """Whether there is something to write."""
    if any(before.get(name) != value for name, value in found.items()):
        return True
    if any(name not in found for name in before if name not in ("observedAt", "state")):
        return True
    if known.engines != ledger.engines:
        return True
    counted = known.routers != ledger.routers
    return counted and ledger.at - known.at >= _REMEMBERED


def _rounded(before: Any, value: Decimal) -> str:
    """To three significant digits; ``before`` where it is near."""
    try:
        written = Decimal(str(before))
        if written.is_finite() and abs(written - value) <= _NEAR * abs(written):
            return str(before)
    except ArithmeticError:
        pass
    if not value:
        return "0"
    rounded = value.quantize(Decimal(1).scaleb(value.adjusted() - _DIGITS + 1))
    return f"{rounded:f}"


def _window(seconds: float) -> str:
    """Rounded down to 1, 5, 10, 15, 30 and 60 minutes."""
    minutes = int(seconds) // 60
    step = max((each for each in (1, 5, 10, 15, 30, 60) if each <= minutes), default=1)
    return "1h" if step == 60 else f"{step}m"
