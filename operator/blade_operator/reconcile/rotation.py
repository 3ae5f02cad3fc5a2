"""A new root key: a service's Secret follows it, in an order in which no engine refuses a router.

The Secret cannot be read: engines that refuse the operator's token say that it is of another key. Processes that run
see a replaced Secret at times of their own, up to two minutes apart, and know both tokens for a while. One that starts
in between knows only the new one. A new router could then use no engine, so none is started: the Secret waits for a
rollout of routers to end, and a rollout waits for the engines; neither for ever, and routers wait for no Secret that
the cluster refuses to replace. A new engine that does not know the old token refuses routers, which send their requests
to another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from blade_operator.model import pods as podutil
from blade_operator.model.deployments import router_deployment
from blade_operator.model.objects import Object
from blade_operator.model.observed import Observed
from blade_operator.reconcile.ownership import own_pods
from blade_operator.reconcile.router_order import requires_token
from blade_operator.status.failures.find import UNAUTHORIZED as REFUSED
from blade_protocol.internal_token import ROTATION_SECONDS
from blade_protocol.labels import REVISION, ROLE_ENGINE, ROLE_ROUTER

SETTLE_SECONDS = 300.0
"""Seconds after which a router that is not ready, or cannot even be made, keeps no Secret waiting."""
ROUTERS_WAIT_SECONDS = SETTLE_SECONDS + ROTATION_SECONDS + 120.0
"""Seconds from the first refusal after which routers wait no longer: no engine takes up a Secret as late as that."""


def secrets_to_replace(desired: Iterable[Object], observed: Observed, now: datetime) -> list[Object]:
    """The Secrets of ``desired`` whose content is of another key, once no router is being started."""
    if not _refusing(observed) or not _routers_settled(observed, now):
        return []
    return [obj for obj in desired if obj["kind"] == "Secret"]


def routers_wait(observed: Observed, templates: Mapping[str, Object], now: datetime) -> bool:
    """Whether every engine would refuse a router that knows only the new token; ``templates`` by revision."""
    engines = [pod for pod in _running(observed.pods, ROLE_ENGINE) if podutil.is_ready(pod)]
    return (
        _refusing(observed)
        and _refused_for(observed, now) <= ROUTERS_WAIT_SECONDS
        and not any(ref.kind == "Secret" for ref in observed.rejected)  # then routers start with the token that stays
        and router_deployment(observed.deployments) is not None
        and not any(
            pod["metadata"]["name"] in observed.engines
            or ((template := templates.get(podutil.revision(pod))) is not None and not requires_token(template))
            for pod in engines
        )
    )


def _refusing(observed: Observed) -> bool:
    """Whether an engine refuses the token that stays: those of an earlier service of this name do, too."""
    return any(pod["metadata"]["name"] in observed.unauthorized for pod in _running(own_pods(observed), ROLE_ENGINE))


def _refused_for(observed: Observed, now: datetime) -> float:
    """Seconds since an engine refused the token first, as the status says; 0 where it does not yet."""
    conditions = (observed.service.get("status") or {}).get("conditions") or ()
    return max(
        (podutil.age(each["lastTransitionTime"], now) for each in conditions if each["type"] == REFUSED), default=0.0
    )


def _routers_settled(observed: Observed, now: datetime) -> bool:
    deployment = router_deployment(observed.deployments)
    routers = _running(observed.pods, ROLE_ROUTER)
    if deployment is None or not routers:
        return True
    wanted = deployment["spec"]["template"]["metadata"].get("labels", {}).get(REVISION, "")
    complete = len(routers) >= int(deployment["spec"].get("replicas", 1))
    if complete and all(podutil.is_ready(pod) and podutil.revision(pod) == wanted for pod in routers):
        return True
    # Pods that are missing may stay so: a quota or an admission policy refuses them.
    return min(podutil.age(pod["metadata"].get("creationTimestamp"), now) for pod in routers) > SETTLE_SECONDS


def _running(pods: Sequence[Object], role: str) -> list[Object]:
    return [pod for pod in pods if podutil.role(pod) == role and podutil.is_active(pod)]
