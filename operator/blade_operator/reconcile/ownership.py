"""Owner references: which children belong to this service, and which to an earlier service of the same name.

Children are found by the service's name. Garbage collection deletes what an earlier service left, but not at once: what
is still there must neither make the new service appear ready nor be kept alive by it.
"""

from __future__ import annotations

import dataclasses

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.model.observed import Observed

CLOCK_SKEW_S = 10.0
"""Seconds by which the clocks of two API servers may differ."""


def owner_uid(obj: Object) -> str:
    """The uid of the owner that controls ``obj``; empty when it has none."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((str(each.get("uid", "")) for each in owners if each.get("controller")), "")


def with_own_children(observed: Observed) -> Observed:
    """``observed`` without the children of an earlier service, apart from pods: they use resources until they are gone.

    Children without an owner belong to the service: they were orphaned on purpose (``kubectl delete
    --cascade=orphan``). Orphaned revisions do not, since their pods mount the earlier service's token.
    """
    uid = observed.service["metadata"].get("uid", "")

    def own(objs: tuple[Object, ...]) -> tuple[Object, ...]:
        return tuple(obj for obj in objs if owner_uid(obj) in ("", uid))

    return dataclasses.replace(
        observed,
        deployments=own(observed.deployments),
        group_objects=own(observed.group_objects),
        services=own(observed.services),
        config_maps=own(observed.config_maps),
        revisions=tuple(obj for obj in observed.revisions if owner_uid(obj) == uid),
        others=own(observed.others),
    )


def own_pods(observed: Observed) -> tuple[Object, ...]:
    """The pods of this service, without those created before the service was."""
    created = podutil.parse_time(observed.service["metadata"].get("creationTimestamp"))
    if created is None:
        return observed.pods
    return tuple(
        pod for pod in observed.pods if podutil.age(pod["metadata"].get("creationTimestamp"), created) <= CLOCK_SKEW_S
    )
