"""What all parts of the operator's benchmark share: the cluster, operator processes, services, and what is counted."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import QUICK
from blade_operator.model.objects import Key, Object
from e2e.cluster import OwnNode
from e2e.support.administrator import Administrator
from e2e.support.as_declared import installed_defaults, problems
from e2e.support.audit import AuditLog, Request
from e2e.support.fake_service import fake_service
from e2e.support.namespaces import make_namespace
from e2e.support.operator_process import Account, OperatorProcess
from e2e.support.waiting import TimedOut

AT_ONCE = 16
"""Services applied at the same time when the time of each does not matter."""


@dataclass(frozen=True)
class Bench:
    """A cluster with fake nodes, and accounts for two operators."""

    cluster: OwnNode
    admin: Administrator
    audit: AuditLog
    first: Account
    second: Account
    folder: Path

    @contextmanager
    def operator(self, account: Account) -> Iterator[OperatorProcess]:
        """An operator that has seen everything; killed at the end if it still runs."""
        with OperatorProcess(self.cluster, account, self.folder / f"{account.name}.log") as process:
            process.wait_ready(120)
            yield process

    def namespace(self, name: str) -> str:
        make_namespace(self.cluster, name)
        return name

    async def apply(self, keys: Iterable[Key]) -> None:
        """LLMServices of one engine and one router each, `AT_ONCE` at a time."""
        todo = iter(list(keys))

        async def work() -> None:
            for key in todo:
                await self.admin.create(fake_service(key.namespace, key.name))

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def all_ready(self, count: int, timeout: float) -> list[Object]:
        """All services there are, once so many are Ready."""
        deadline = time.monotonic() + timeout
        while True:
            services = await self.admin.services()
            ready = sum(condition(service, "Ready").get("status") == "True" for service in services)
            if ready == count:
                return services
            if time.monotonic() > deadline:
                raise TimedOut(f"{ready} of {count} services are Ready after {timeout:g} s")
            await asyncio.sleep(1 if QUICK else 5)

    async def check(self, timeout: float = 60.0) -> None:
        """Every object is as declared and nothing else is there; raises TimedOut with what is wrong."""
        defaults = installed_defaults(self.cluster, self.first.namespace)
        deadline = time.monotonic() + timeout
        while found := problems(await self.admin.services(), await self.admin.children(), defaults):
            if time.monotonic() > deadline:
                raise TimedOut(f"{len(found)} objects are not as declared: {'; '.join(found[:10])}")
            await asyncio.sleep(3)

    def written(self, account: Account, since: int) -> list[Request]:
        """What an operator changed, its Lease left out."""
        requests = self.audit.requests(account.user, since=since)
        return [each for each in requests if each.is_write and each.code < 300 and each.resource != "leases"]

    def verbs(self, account: Account, since: int) -> Counter[str]:
        """All its requests by verb, those for its Lease left out."""
        return Counter(
            each.verb for each in self.audit.requests(account.user, since=since) if each.resource != "leases"
        )


class Meter:
    """CPU time and memory of a process."""

    def __init__(self, pid: int) -> None:
        self._proc = Path(f"/proc/{pid}")
        self._cpu = self.cpu_seconds
        self._since = time.monotonic()

    @property
    def cpu_seconds(self) -> float:
        """Since the process began."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def cpu_percent(self) -> float:
        """Percent of one CPU since this meter was made."""
        return 100 * (self.cpu_seconds - self._cpu) / (time.monotonic() - self._since)

    @property
    def rss(self) -> float:
        """MiB now."""
        return self._memory("VmRSS")

    @property
    def rss_peak(self) -> float:
        """MiB at most since the process began."""
        return self._memory("VmHWM")

    def _memory(self, field: str) -> float:
        lines = (self._proc / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def condition(service: Object, kind: str) -> Object:
    """A condition of that type that speaks of the newest spec; else empty."""
    status = service.get("status") or {}
    if status.get("observedGeneration") != service["metadata"]["generation"]:
        return {}
    return next((each for each in status.get("conditions", ()) if each["type"] == kind), {})
