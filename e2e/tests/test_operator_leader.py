"""Two operators and one Lease: whoever holds it works, the other takes over, and one that lost it writes nothing.

Times are read from the Lease itself, which two processes of one machine write by the same clock. While the installed
operator rests for these tests, a namespace with a service is deleted: nothing of us can hold it back.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from blade_operator.cluster.kubernetes.kinds import KINDS
from blade_operator.model.objects import Object
from blade_protocol.labels import ROLE, ROLE_ENGINE
from e2e.cluster import Cluster, OwnNode
from e2e.support.administrator import Administrator, administrator
from e2e.support.audit import AuditLog
from e2e.support.fake_service import fake_service
from e2e.support.namespaces import OF_A_TEST, discard_namespace, make_namespace
from e2e.support.node import own_node
from e2e.support.operator_process import LEASE, OperatorProcess, make_accounts, no_other_operator
from e2e.support.service import CLAIM, DEMO_MODEL, Service
from e2e.support.waiting import until

TAKE_OVER_WITHIN = 15.0
"""Seconds from the last renewal of a leader that is gone."""
LEASE_LASTS = 10.0
SERVICES = 10
"""Their pods find no node, which does not matter here."""


@pytest.fixture(scope="module")
def leaving(cluster: Cluster, operator: str) -> Iterator[Service]:
    """A service that is ready, in a namespace to be deleted."""
    own_node(cluster)
    namespace = f"leaving-{secrets.token_hex(4)}"
    make_namespace(cluster, namespace, **{OF_A_TEST: "true"})
    cluster.static_volume(namespace, CLAIM, DEMO_MODEL)
    service = Service(cluster, namespace)
    service.apply(rollout={"drainTimeout": "60s"})
    service.wait_ready()
    yield service
    discard_namespace(cluster, namespace)


@pytest.fixture(scope="module")
def alone(cluster: Cluster) -> Iterator[OwnNode]:
    """A cluster without another operator."""
    node = own_node(cluster)
    with no_other_operator(node):
        yield node


@pytest.fixture(scope="module", autouse=True)
def gone(leaving: Service, alone: OwnNode) -> Iterator[subprocess.Popen[str]]:
    """Deletes the namespace, which takes a minute, and watches whether it goes in time while the tests run."""
    grace = max(pod["spec"]["terminationGracePeriodSeconds"] for pod in leaving.pods("engine"))
    alone.kubectl("delete", "namespace", leaving.namespace, "--wait=false")
    wait = ["kubectl", "wait", "--for=delete", f"namespace/{leaving.namespace}", f"--timeout={grace}s"]
    with alone.popen(wait) as watcher:
        yield watcher
        watcher.kill()


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Administrator]:
    async with administrator(cluster) as found:
        yield found


@dataclass(frozen=True)
class Pair:
    """Two operators: ``leader`` works, ``standby`` is ready to."""

    cluster: OwnNode
    namespace: str
    leader: OperatorProcess
    standby: OperatorProcess

    def lease(self) -> Object:
        """Its spec; empty while there is none."""
        found = self.cluster.json("-n", self.namespace, "get", "leases")["items"]
        return next((dict(lease["spec"]) for lease in found if lease["metadata"]["name"] == LEASE), {})

    async def taken_over(self) -> Object:
        """The Lease once the standby has it."""

        def taken() -> Object | None:
            lease = self.lease()
            return lease if lease.get("holderIdentity") == self.standby.account.name else None

        lease = await asyncio.to_thread(until, taken, 30, "the standby leads")
        assert lease is not None
        return lease


@pytest.fixture
def pair(alone: OwnNode, crd: None, namespace: str, tmp_path: Path) -> Iterator[Pair]:
    """Both have seen everything, and the first leads."""
    accounts = make_accounts(alone, namespace, ["first", "second"], tmp_path, watching=[namespace])
    with ExitStack() as stack:

        def start(index: int) -> OperatorProcess:
            log = tmp_path / f"{accounts[index].name}.log"
            return stack.enter_context(OperatorProcess(alone, accounts[index], log, "--namespaces", namespace))

        first = start(0)
        first.wait_ready()
        second = start(1)
        second.wait_ready()
        pair = Pair(alone, namespace, first, second)
        until(lambda: pair.lease().get("holderIdentity") == "first", 30, "the first leads")
        yield pair


async def test_a_killed_leader_is_replaced(pair: Pair, admin: Administrator) -> None:
    await admin.create(fake_service(pair.namespace, "demo"))
    await engines(admin, pair.namespace, {"demo": 1})

    pair.leader.kill()
    await admin.scale(pair.namespace, "demo", 2)
    killed = time.monotonic()
    before = pair.lease()
    assert before["holderIdentity"] == "first"
    after = await pair.taken_over()
    await engines(admin, pair.namespace, {"demo": 2})
    print(f"acted after {time.monotonic() - killed:.1f} s")

    waited = (moment(after["acquireTime"]) - moment(before["renewTime"])).total_seconds()
    assert LEASE_LASTS <= waited <= TAKE_OVER_WITHIN
    assert after["leaseTransitions"] == before["leaseTransitions"] + 1


async def test_a_leader_that_ends_hands_over(pair: Pair, admin: Administrator) -> None:
    before = pair.lease()
    released_at = datetime.now(UTC)
    pair.leader.send(signal.SIGTERM)
    assert await asyncio.to_thread(pair.leader.wait) == 0, pair.leader.said()
    after = await pair.taken_over()
    print(f"handed over after {(moment(after['acquireTime']) - released_at).total_seconds():.1f} s")

    # Nobody waited for a lease to run out.
    waited = (moment(after["acquireTime"]) - moment(before["renewTime"])).total_seconds()
    assert waited < LEASE_LASTS
    await admin.create(fake_service(pair.namespace, "demo"))
    await engines(admin, pair.namespace, {"demo": 1})


async def test_a_stopped_leader_writes_nothing_more(pair: Pair, alone: OwnNode, admin: Administrator) -> None:
    names = [f"s{number}" for number in range(SERVICES)]
    for name in names:
        await admin.create(fake_service(pair.namespace, name))
    # In the middle of its work: it has made some of the Deployments.
    await some_engines(admin, pair.namespace)
    pair.leader.send(signal.SIGSTOP)
    stopped = datetime.now(UTC)
    for name in names:
        await admin.scale(pair.namespace, name, 2)
    await pair.taken_over()
    await engines(admin, pair.namespace, dict.fromkeys(names, 2))
    for name in names:
        await admin.scale(pair.namespace, name, 3)
    await asyncio.sleep(30 - (datetime.now(UTC) - stopped).total_seconds())

    continued = datetime.now(UTC)
    pair.leader.send(signal.SIGCONT)
    assert await asyncio.to_thread(pair.leader.wait) == 1, pair.leader.said()
    await engines(admin, pair.namespace, dict.fromkeys(names, 3))
    assert alone.audit_log is not None
    requests = AuditLog(alone.audit_log).requests(pair.leader.account.user)
    written = [each for each in requests if each.is_write and each.code < 300]
    assert any(each.at < stopped for each in written)
    assert [each for each in written if each.at > continued] == []
    # What the server had received when it was stopped, it did within its time limit for a write.
    assert [each for each in written if (each.at - stopped).total_seconds() > 1] == []


def test_a_namespace_goes_while_the_operator_is_stopped(gone: subprocess.Popen[str]) -> None:
    said, _ = gone.communicate(timeout=120)
    assert gone.returncode == 0, said


async def engines(admin: Administrator, namespace: str, sizes: dict[str, int]) -> None:
    """Wait until each service has one engine Deployment of that size."""
    wanted = {f"{name}-engine": size for name, size in sizes.items()}
    deadline = time.monotonic() + 30
    while (found := await _engine_sizes(admin, namespace)) != wanted:
        assert time.monotonic() < deadline, f"engine Deployments are {found}, not {wanted}"
        await asyncio.sleep(0.05)


async def some_engines(admin: Administrator, namespace: str) -> None:
    """Wait for the first engine Deployment."""
    deadline = time.monotonic() + 30
    while not await _engine_sizes(admin, namespace):
        assert time.monotonic() < deadline, "no engine Deployment"
        await asyncio.sleep(0.01)


async def _engine_sizes(admin: Administrator, namespace: str) -> dict[str, int]:
    found = await admin.find(KINDS["Deployment"], namespace, f"{ROLE}={ROLE_ENGINE}")
    return {obj["metadata"]["name"].rpartition("-")[0]: obj["spec"]["replicas"] for obj in found}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
