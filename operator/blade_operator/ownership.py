"""Which children are a service's own, where another of the same name was deleted shortly before.

Children are found by the service's name. Garbage collection takes what an earlier service left, but not at once: what
is still there must neither make the new one look ready nor be kept alive by it.
"""

from __future__ import annotations

import dataclasses

from blade_operator import pods as read
from blade_operator.objects import Object
from blade_operator.observed import Observed

SKEW_S = 10.0
"""Seconds by which the clocks of two API servers may differ."""


def owner(obj: Object) -> str:
    """The uid of what ``obj`` goes with; empty when it goes with nothing."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((str(each.get("uid", "")) for each in owners if each.get("controller")), "")


def without_remains(observed: Observed) -> Observed:
    """``observed`` without the children of an earlier service, apart from pods: they take up room until they have left.

    What belongs to nobody is the service's: it was left behind on purpose (``kubectl delete --cascade=orphan``). Its
    revisions are not, since their pods mount the earlier service's token.
    """
    uid = observed.service["metadata"].get("uid", "")

    def own(objs: tuple[Object, ...]) -> tuple[Object, ...]:
        return tuple(obj for obj in objs if owner(obj) in ("", uid))

    return dataclasses.replace(
        observed,
        deployments=own(observed.deployments),
        services=own(observed.services),
        config_maps=own(observed.config_maps),
        revisions=tuple(obj for obj in observed.revisions if owner(obj) == uid),
        others=own(observed.others),
    )


def own_pods(observed: Observed) -> tuple[Object, ...]:
    """The pods without those that were there before the service was."""
    created = read.parse_time(observed.service["metadata"].get("creationTimestamp"))
    if created is None:
        return observed.pods
    return tuple(pod for pod in observed.pods if read.age(pod["metadata"].get("creationTimestamp"), created) <= SKEW_S)
