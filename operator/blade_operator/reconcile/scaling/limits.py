"""What ``spec.scaling`` asks of the autoscaler now, and the engines that it has."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Final

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.model.scale_target import EnginePods
from blade_operator.scaling.policy import Budget, Limits, Policy, Speed, Targets
from blade_operator.scaling.schedule import Period, bounds
from blade_operator.spec.quantity import parse_duration
from blade_operator.spec.scaling_fields import Behavior, Scaling
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER

_UP_ENGINES: Final = 4
_UP_SECONDS: Final = 15.0
_DOWN_ENGINES: Final = 1
_DOWN_SECONDS: Final = 60.0
_LONGEST_START: Final = 1800.0
_BEHAVIOR: Final = Behavior()


def limits_of(scaling: Scaling, gpus: int, now: datetime) -> Limits:
    """The policy of a service that is scaled by load, each engine of which has so many GPUs."""
    periods = [
        Period(each.cron, each.time_zone, parse_duration(each.duration), each.min, each.max)
        for each in scaling.schedules
    ]
    least, most, wrong = bounds(periods, scaling.min, scaling.max or max(scaling.min, 1), now)
    problem = ("ScheduleInvalid", f"spec.scaling.{wrong}") if wrong else None
    budget = budget_of(scaling, gpus)
    if budget is not None and budget.engines < max(least, 1):
        problem = (
            "BudgetBelowMin",
            f"{max(least, 1)} engines are more than spec.scaling.{budget.field}, {budget.amount}, allows, and run all "
            "the same: raise it, or lower min",
        )
    if budget is not None:
        most = min(most, max(budget.engines, least, 1))
    behavior = scaling.behavior or _BEHAVIOR
    policy = Policy(
        least=least,
        most=most,
        concurrency=_concurrency(scaling),
        targets=_targets(scaling),
        up=Speed(_UP_ENGINES, behavior.up_percent, _UP_SECONDS),
        down=Speed(_DOWN_ENGINES, behavior.down_percent, _DOWN_SECONDS),
        down_delay=float(parse_duration(behavior.down_delay)),
        idle_to_zero=float(parse_duration(scaling.idle_to_zero)) if scaling.idle_to_zero and not least else None,
    )
    return Limits(policy, budget, problem)


def budget_of(scaling: Scaling, gpus: int) -> Budget | None:
    """The tightest budget of a service whose engines have so many GPUs each; None: there is none."""
    budgets = []
    if scaling.max_gpus is not None and gpus:
        budgets.append(Budget(scaling.max_gpus // gpus, "maxGPUs", str(scaling.max_gpus)))
    if (cost := scaling.cost) is not None:
        budgets.append(Budget(int(Decimal(cost.max) // Decimal(cost.engine)), "cost.max", cost.max))
    return min(budgets, key=attrgetter("engines"), default=None)


def seconds(latency: str | None) -> float | None:
    """Seconds in a latency like ``500ms`` or ``2s``."""
    if latency is None:
        return None
    return float(latency[:-2]) / 1000 if latency.endswith("ms") else float(latency[:-1])


def _by_slo(scaling: Scaling) -> bool:
    return scaling.mode == "SLO" or (scaling.mode == "Advisory" and scaling.slo is not None)


def _concurrency(scaling: Scaling) -> float | None:
    return None if _by_slo(scaling) or scaling.target is None else float(scaling.target.concurrency)


def _targets(scaling: Scaling) -> Targets:
    if not _by_slo(scaling) or scaling.slo is None:
        return Targets()
    return Targets(seconds(scaling.slo.ttft), seconds(scaling.slo.tpot), scaling.slo.percentile / 100)


def engine_pods(pods: Iterable[Object], standby: int = 0) -> EnginePods:
    """What there is of engines among ``pods``. ``standby``: the size of the pool, which does not count."""
    pods = tuple(pods)
    active = [pod for pod in pods if podutil.role(pod) == ROLE_ENGINE and podutil.is_active(pod)]
    active = [pod for pod in active if not podutil.stands_by(pod)]
    staying = [pod for pod in active if not podutil.draining_since(pod)]
    ready = sum(map(podutil.is_ready, staying))
    starting = tuple(_made(pod) for pod in staying if not podutil.is_ready(pod))
    return EnginePods(len(active), ready, starting, start_seconds(pods), standby)


def start_seconds(pods: Iterable[Object]) -> float | None:
    """From the creation of an engine's pod to its readiness: the median over those that are ready; None: none is.

    One whose container restarted, or that stood by, says nothing: it became ready a second time.
    """
    measured = []
    for pod in pods:
        if podutil.role(pod) != ROLE_ENGINE or not podutil.is_ready(pod) or podutil.woken_at(pod):
            continue
        created = podutil.parse_time(pod["metadata"].get("creationTimestamp"))
        ready = podutil.parse_time(podutil.condition(pod, "Ready").get("lastTransitionTime"))
        if created is None or ready is None or any(state.restarts for state in podutil.containers(pod)):
            continue
        measured.append(ready.timestamp() - created.timestamp())
    return min(max(1.0, statistics.median(measured)), _LONGEST_START) if measured else None


def ready_routers(pods: Iterable[Object]) -> list[str]:
    """Names of the router pods that are ready."""
    return [pod["metadata"]["name"] for pod in pods if podutil.role(pod) == ROLE_ROUTER and podutil.is_ready(pod)]


def _made(pod: Object) -> float:
    """Unix time at which ``pod`` was made, or woken; one that does not say has just been."""
    made = podutil.parse_time(podutil.woken_at(pod) or pod["metadata"].get("creationTimestamp"))
    return math.inf if made is None or made.tzinfo is None else made.timestamp()
