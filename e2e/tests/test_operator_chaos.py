"""The operator killed with -9 at random moments while many services are created, edited, scaled and deleted at random.

Whatever it was doing: the end is what the specs say, nothing is left over, and nothing was done twice.
``CHAOS_SEED`` repeats a run's steps, ``CHAOS_SERVICES``, ``CHAOS_STEPS`` and ``CHAOS_DEATHS`` make it longer.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from blade_operator.cluster.kubernetes.kinds import EVENT
from blade_operator.model.objects import Object
from blade_operator.render import Defaults
from e2e.cluster import Cluster, OwnNode
from e2e.support.administrator import Administrator, administrator
from e2e.support.as_declared import installed_defaults, problems
from e2e.support.audit import AuditLog, Request
from e2e.support.fake_service import fake_nodes
from e2e.support.node import own_node
from e2e.support.operator_process import Account, OperatorProcess, make_accounts, no_other_operator
from e2e.support.random_life import RandomLife

SERVICES: Final = int(os.environ.get("CHAOS_SERVICES", "50"))
STEPS: Final = (3, int(os.environ.get("CHAOS_STEPS", "6")))
DEATHS: Final = int(os.environ.get("CHAOS_DEATHS", "10"))
"""How often the operator is killed while the steps are made."""
LIFE: Final = 3.0
"""Seconds an operator works before it is killed, at most."""
CONVERGE_TIMEOUT: Final = 120.0
MADE_ONCE: Final = frozenset({"serviceaccounts", "roles", "rolebindings"})
"""Nothing that the lives change is in these."""


@pytest.fixture
def alone(cluster: Cluster) -> Iterator[OwnNode]:
    """A cluster with fake nodes and without another operator."""
    node = own_node(cluster)
    with no_other_operator(node), fake_nodes(node, 3):
        yield node


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Administrator]:
    async with administrator(cluster) as found:
        yield found


async def test_killed_at_any_moment(
    alone: OwnNode, crd: None, namespace: str, admin: Administrator, tmp_path: Path
) -> None:
    seed = os.environ.get("CHAOS_SEED") or secrets.token_hex(4)
    print(f"CHAOS_SEED={seed}")
    dice = random.Random(seed)
    [account] = make_accounts(alone, namespace, ["operator"], tmp_path, watching=[namespace])
    lives = [RandomLife(admin, namespace, f"s{n:03}", seed, dice.randint(*STEPS)) for n in range(SERVICES)]
    operators = Mortal(alone, account, tmp_path / "operator.log", dice)

    async with asyncio.timeout(60 + 30 * DEATHS), asyncio.TaskGroup() as group:
        death = group.create_task(operators.die_again_and_again())
        await asyncio.gather(*(life.live(operators.until) for life in lives))
        await operators.until(1.0)
        death.cancel()
    defaults = installed_defaults(alone, namespace)
    log = AuditLog(alone.audit_log or Path())
    amid = len(writes(log.requests(account.user)))
    with operators.one():
        await wait_until_converged(admin, namespace, lives, defaults)
        before = log.mark()
        await asyncio.sleep(12)  # longer than engines that do not respond are left alone
        at_rest = writes(log.requests(account.user, since=before))
    assert at_rest == [], "it writes though nothing changes"
    requests = writes(log.requests(account.user))
    steps = sum(len(life.history) for life in lives)
    print(f"{operators.deaths} kills, {steps} steps, {len(requests)} writes, {amid} of them until the last kill")
    nothing_twice(requests, lives, defaults)
    recorded_once(await admin.find(EVENT, namespace), lives)


class Mortal:
    """An operator that is killed as soon as it works, and started again."""

    def __init__(self, cluster: Cluster, account: Account, log: Path, dice: random.Random) -> None:
        self._cluster, self._account, self._log, self._dice = cluster, account, log, dice
        self._died = asyncio.Condition()
        self.deaths = 0

    def one(self) -> OperatorProcess:
        namespaces = ["--namespaces", self._account.namespace, "--no-leader_elect"]
        return OperatorProcess(self._cluster, self._account, self._log, *namespaces)

    async def until(self, moment: float) -> None:
        """Wait for a moment between the first start (0) and the last death (1)."""
        deaths, rest = divmod(moment * DEATHS, 1)
        async with self._died:
            await self._died.wait_for(lambda: self.deaths >= deaths)
        await asyncio.sleep(rest * LIFE)

    async def die_again_and_again(self) -> None:
        """Start and kill the operator until cancelled."""
        while True:
            with self.one() as operator:
                await asyncio.to_thread(operator.wait_ready)
                # Mostly in the middle of what it found to do; sometimes later.
                await asyncio.sleep(self._dice.choice((0.3, 1.0, LIFE)) * self._dice.random())
            async with self._died:
                self.deaths += 1
                self._died.notify_all()


async def wait_until_converged(
    admin: Administrator, namespace: str, lives: list[RandomLife], defaults: Defaults
) -> None:
    """Wait until exactly what the specs declare exists; report what differs if that does not happen."""
    expected = {life.name for life in lives if life.exists}
    deadline = asyncio.get_running_loop().time() + CONVERGE_TIMEOUT
    while True:
        services = await admin.services(namespace)
        found = problems(services, await admin.children(namespace), defaults)
        assert {service["metadata"]["name"] for service in services} == expected
        if not found:
            return
        assert asyncio.get_running_loop().time() < deadline, "\n".join([*found[:40], f"{len(found)} in all"])
        await asyncio.sleep(1)


def writes(requests: Iterable[Request]) -> list[Request]:
    """Requests that changed something."""
    return [each for each in requests if each.is_write and each.code < 300]


def nothing_twice(requests: list[Request], lives: list[RandomLife], defaults: Defaults) -> None:
    """No object is made or written more often than the user gave reason to."""
    made: Counter[tuple[str, str]] = Counter()
    written: Counter[tuple[str, str]] = Counter()
    for each in requests:
        kind = f"{each.resource}/{each.subresource}" if each.subresource else each.resource
        written[kind, each.name] += 1
        made[kind, each.name] += each.code == 201
    wrong = []
    for life in lives:
        born, steps = life.history.count("create"), len(life.history)
        entered = life.revisions_entered(defaults)
        for revision, times in entered.items():
            name = f"{life.name}-engine-{revision}"
            if (count := made["deployments", name]) > times:
                wrong.append(f"Deployment {name} was made {count} times, wanted {times} times")
        for (kind, name), count in written.items():
            if not name.startswith(f"{life.name}-"):
                continue
            # What a service of that name had before it was deleted may go just after it was written again.
            if kind in MADE_ONCE and count > 2 * born:
                wrong.append(f"{kind} {name} was written {count} times for {born} lives")
            if kind not in ("deployments", "secrets") and count > steps + born:
                wrong.append(f"{kind} {name} was written {count} times in {steps} steps")
    assert wrong == []


def recorded_once(events: list[Object], lives: list[RandomLife]) -> None:
    """The same message twice only if something happened in between: another event, or a step of the user."""
    stored = {life.name: [int(state["metadata"]["resourceVersion"]) for state in life.states] for life in lives}
    by_uid: dict[str, list[Any]] = {}
    for event in events:
        by_uid.setdefault(event["involvedObject"]["uid"], []).append(event)
    twice = []
    for same_object in by_uid.values():
        same_object.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
        for first, second in pairwise(same_object):
            if (first["reason"], first["message"]) != (second["reason"], second["message"]):
                continue
            about = second["involvedObject"]
            since, until = (int(event["involvedObject"]["resourceVersion"]) for event in (first, second))
            if not any(since < version <= until for version in stored[about["name"]]):
                twice.append(f"{about['name']}: {second['reason']}: {second['message']}")
    assert twice == []
