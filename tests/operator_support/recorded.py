"""A controller whose cluster and engines record what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from blade_operator.cluster import Rejected
from blade_operator.controller.controller import Controller
from blade_operator.fleet import Fleet, FleetReport
from blade_operator.model.objects import Key, Object, Ref
from blade_operator.model.observed import Observed
from blade_operator.model.plan import EventRecord, Plan, Prune
from blade_protocol.state import EngineState

KEY = Key("default", "qwen")
POD: Object = {"kind": "Pod", "metadata": {"name": "pod-1", "namespace": "default"}}


def named(kind: str, name: str) -> Object:
    """An object with nothing but its name."""
    return {"kind": kind, "metadata": {"name": name, "namespace": "default"}}


class RecordingCluster:
    """Records every call, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.queue: asyncio.Queue[Key] = asyncio.Queue()
        self.gone = False
        self.refused: dict[str, str] = {}
        self.failing = ""
        self.adapter: Object = {}
        """A LoRAAdapter of the namespace."""
        self.claimed = False
        """By another installation."""
        self.pods: tuple[Object, ...] = (POD,)

    async def changes(self) -> AsyncIterator[Key]:
        while True:
            yield await self.queue.get()

    async def observe(self, key: Key) -> Observed | None:
        return None if self.gone else Observed({"metadata": {"name": key.name}}, pods=self.pods)

    async def apply(self, obj: Object) -> None:
        self.calls.append(("apply", obj["metadata"]["name"]))
        await asyncio.sleep(0)
        self.calls.append(("applied", obj["metadata"]["name"]))
        if obj["metadata"]["name"] in self.refused:
            raise Rejected(self.refused[obj["metadata"]["name"]])
        if obj["metadata"]["name"] == self.failing:
            raise RuntimeError("the API is away")

    async def replace(self, obj: Object) -> None:
        self.calls.append(("replace", obj["metadata"]["name"]))

    async def prune(self, prune: Prune) -> None:
        self.calls.append(("prune", prune.ref.name))
        if prune.ref.name in self.refused:
            raise Rejected(self.refused[prune.ref.name])

    async def delete(self, ref: Ref) -> None:
        self.calls.append(("delete", ref.name))

    async def claim(self, key: Key, before: Object, status: Object) -> bool:
        self.calls.append(("claim", before, status))
        return not self.claimed

    async def write_status(self, key: Key, status: Object) -> None:
        self.calls.append(("status", status["phase"]))

    def lora_adapters(self, namespace: str) -> tuple[Object, ...]:
        return (self.adapter,) if self.adapter else ()

    async def update_adapter_status(self, ref: Ref, change: Callable[[Object], Object]) -> None:
        self.calls.append(("adapter", ref.name, change(self.adapter)))

    async def emit(self, key: Key, event: EventRecord) -> None:
        self.calls.append(("event", event.reason))


class RecordingFleet(Fleet):
    """Engines in these states, which drain at once."""

    def __init__(self, cluster: RecordingCluster, states: Mapping[str, EngineState]) -> None:
        self._cluster = cluster
        self._states = states

    async def query(self, pods: Iterable[Object], signals: bool = False) -> FleetReport:
        return FleetReport(self._states)

    async def drain(self, pod: Object, draining: bool = True, *, standby: bool = False) -> bool:
        done = "standby" if standby else "drain" if draining else "undrain"
        self._cluster.calls.append((done, pod["metadata"]["name"]))
        return True


def recorded(
    reconcile: Callable[[Observed, datetime], Plan], states: Mapping[str, EngineState] | None = None
) -> tuple[RecordingCluster, Controller]:
    """A controller that executes what ``reconcile`` plans, and the cluster that it is of."""
    cluster = RecordingCluster()
    return cluster, Controller(cluster, RecordingFleet(cluster, states or {}), reconcile)


def state(running: int) -> EngineState:
    """What an engine with so many requests says."""
    return EngineState(
        model="m",
        revision="r",
        ready=True,
        draining=False,
        running=running,
        waiting=0,
        kv_blocks_total=1,
        kv_blocks_free=1,
        prompt_tokens_total=0,
        cached_tokens_total=0,
        generation_tokens_total=0,
        preemptions_total=0,
        epoch="e",
        sequence=0,
    )
