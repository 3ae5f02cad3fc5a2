"""The leader is lost in three ways: how long until the other acts, and what the old one still does."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import ExitStack
from datetime import UTC, datetime

from benchmarks.figures import Figure
from benchmarks.operator.bench import Bench
from blade_operator.cluster.kubernetes.kinds import KINDS
from blade_operator.model.objects import Key
from blade_protocol.labels import NAME, ROLE, ROLE_ENGINE
from e2e.support.operator_process import OperatorProcess
from e2e.support.waiting import TimedOut

ACTS_WITHIN = 15.0
HANDS_OVER_WITHIN = 3.0
STOPPED = 30.0
BUSY_WITH = 20
"""Services that are scaled as the leader is stopped, so that it is in the middle of writing."""


async def lose(bench: Bench, keys: list[Key], leader: OperatorProcess, standby: OperatorProcess) -> list[Figure]:
    """``leader`` is stopped, its successor killed, and that one's successor sent SIGTERM."""
    stopped = await _stop(bench, keys, leader, standby)
    with ExitStack() as stack:
        third = stack.enter_context(bench.operator(bench.first))
        standby.kill()
        killed = await _until_acted(bench, keys[0], 3)
        fourth = stack.enter_context(bench.operator(bench.second))
        third.send(signal.SIGTERM)
        ended = await _until_acted(bench, keys[0], 1)
        code = await asyncio.to_thread(third.wait)
        if code:
            raise RuntimeError(f"after SIGTERM the leader exited with {code}")
        await bench.check(120)
        fourth.kill()
    return [
        *stopped,
        Figure("acted_after_kill", killed, "s", "<=", ACTS_WITHIN),
        Figure("acted_after_sigterm", ended, "s", "<=", HANDS_OVER_WITHIN),
    ]


async def _stop(bench: Bench, keys: list[Key], leader: OperatorProcess, standby: OperatorProcess) -> list[Figure]:
    mark = bench.audit.mark()
    await asyncio.gather(*(bench.admin.scale(key.namespace, key.name, 2) for key in keys[1 : 1 + BUSY_WITH]))
    deadline = time.monotonic() + 10
    while not bench.written(leader.account, mark):
        if time.monotonic() > deadline:
            raise TimedOut(f"{leader.account.name} does not act: it cannot be stopped amid its work")
        await asyncio.sleep(0.01)
    leader.send(signal.SIGSTOP)
    stopped = time.monotonic()
    acted = await _until_acted(bench, keys[0], 2)
    await asyncio.sleep(max(0.0, STOPPED - (time.monotonic() - stopped)))
    continued = datetime.now(UTC)
    leader.send(signal.SIGCONT)
    code = await asyncio.to_thread(leader.wait)
    if code != 1:
        raise RuntimeError(f"the leader that was stopped exited with {code}, not 1")
    await bench.check()
    requests = bench.audit.requests(leader.account.user, since=mark)
    late = [each for each in requests if each.is_write and each.code < 300 and each.at > continued]
    return [
        Figure("acted_after_stop", acted, "s", "<=", ACTS_WITHIN),
        Figure("writes_after_continue", len(late), "requests", "<=", 0),
    ]


async def _until_acted(bench: Bench, key: Key, replicas: int) -> float:
    """Seconds until ``kubectl scale`` of a service, sent now, has reached its Deployment."""
    begin = time.monotonic()
    await asyncio.to_thread(
        bench.cluster.kubectl, "-n", key.namespace, "scale", "llm", key.name, f"--replicas={replicas}"
    )
    while time.monotonic() < begin + 60:
        selector = f"{NAME}={key.name},{ROLE}={ROLE_ENGINE}"
        [deployment] = await bench.admin.find(KINDS["Deployment"], key.namespace, selector)
        if deployment["spec"]["replicas"] == replicas:
            return time.monotonic() - begin
        await asyncio.sleep(0.05)
    raise TimedOut(f"nobody scaled {key} to {replicas} within 60 s")
