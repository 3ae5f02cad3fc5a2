"""Resources of a router's container, and the budget of request bodies that fits its memory limit."""

from __future__ import annotations

from blade_operator.spec.pod_fields import ResourceList, Resources
from blade_operator.spec.quantity import parse_bytes, parse_quantity
from blade_operator.spec.router_fields import Router
from blade_protocol.limits import (
    BODY_BUDGET_BYTES,
    KV_INDEX_BYTES,
    MIN_BODY_BUDGET_BYTES,
    PREFIX_INDEX_BYTES,
    ROUTER_PROCESS_BYTES,
)

CPU_REQUEST = "100m"
"""An idle router takes no measurable CPU; a busy one up to a core for each of its processes."""
SUPERVISOR_BYTES = 32 << 20
"""Memory of the parent of several processes, which serves nothing."""


def router_resources(router: Router) -> Resources:
    """What the spec sets, and for the rest requests that fit and a memory limit: one router must not take a node's."""
    wanted = router.resources or Resources()
    requests, limits = wanted.requests or ResourceList(), wanted.limits or ResourceList()
    memory_limit = limits.memory
    if memory_limit is None and not router.image:  # an older one has no budget that it would fit
        needed = _besides_bodies(router) + router.workers * BODY_BUDGET_BYTES
        if requests.memory is not None and parse_bytes(requests.memory) > needed:
            memory_limit = requests.memory
        else:
            memory_limit = f"{-(-needed >> 20)}Mi"
    memory, cpu = requests.memory, requests.cpu
    if memory is None:
        own = f"{(router.workers * ROUTER_PROCESS_BYTES) >> 20}Mi"
        fits = memory_limit is None or parse_bytes(own) <= parse_bytes(memory_limit)
        memory = own if fits else memory_limit
    if cpu is None:
        small = limits.cpu is not None and parse_quantity(limits.cpu) < parse_quantity(CPU_REQUEST)
        cpu = limits.cpu if small else CPU_REQUEST
    return Resources(
        requests=ResourceList(cpu=cpu, memory=memory), limits=ResourceList(cpu=limits.cpu, memory=memory_limit)
    )


def body_budget(router: Router) -> int | None:
    """Bytes of each process's ``--body_budget_bytes``: what the spec's memory limit leaves for it.

    None: the spec sets no limit, and the default of both fits; or the image is the user's own, perhaps too old for it.
    """
    limits = router.resources.limits if router.resources is not None else None
    if limits is None or limits.memory is None or router.image:
        return None
    left = parse_bytes(limits.memory) - _besides_bodies(router)
    least = MIN_BODY_BUDGET_BYTES
    if router.max_body_bytes is not None:  # with less than 8/7 of it a router does not start
        least = max(least, parse_bytes(router.max_body_bytes) * 3 // 2)
    return max(least, left // router.workers)


def _besides_bodies(router: Router) -> int:
    """Bytes of all processes without the bodies of requests."""
    process = ROUTER_PROCESS_BYTES
    if router.prefix_index_bytes is not None:
        process += max(0, parse_bytes(router.prefix_index_bytes) - PREFIX_INDEX_BYTES)
    if router.policy == "kvAware":
        process += KV_INDEX_BYTES
    return router.workers * process + (SUPERVISOR_BYTES if router.workers > 1 else 0)
