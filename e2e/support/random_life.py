"""What a careless user does to one LLMService: create, edit, scale and delete it, in any order and at any time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from blade_operator.model.objects import Object
from blade_operator.render import Defaults
from e2e.support.administrator import Administrator
from e2e.support.as_declared import revision
from e2e.support.fake_service import fake_service

EDITS: Final[tuple[Object, ...]] = (
    {"engine": {"maxNumSeqs": 8}},
    {"engine": {"maxNumSeqs": 16}},
    {"engine": {"contextLength": 2048}},
    {"engine": {"contextLength": None, "maxNumSeqs": None}},
    {"engine": {"shmSize": "2Gi"}},
    {"check": {"mode": "Off"}},
    {"check": {"mode": "Warn"}},
    {"router": {"replicas": 2}},
    {"router": {"policy": "roundRobin"}},
    {"security": {"networkPolicy": False}},
    {"security": {"networkPolicy": True}},
    {"rollout": {"maxUnavailable": 1, "maxSurge": 0}},
    {"rollout": {"revisionHistoryLimit": 1}},
    {"model": {"servedNames": ["other"]}},
)
"""Some make a new revision, some go back to an earlier one, some leave the engines alone."""
STEPS: Final = ("edit", "edit", "scale", "scale", "delete")


class RandomLife:
    """One service's life; the same for the same ``seed``, but for the moment each step happens to hit."""

    def __init__(self, administrator: Administrator, namespace: str, name: str, seed: str, steps: int) -> None:
        self.name = name
        self._administrator = administrator
        self._namespace = namespace
        self._random = random.Random(f"{seed} {name}")
        self._steps = steps
        self.states: list[Object] = []
        """What the server stored after each step, but for deletions."""
        self.exists = False
        self.history: list[str] = []
        """The steps taken so far."""

    async def live(self, until: Callable[[float], Awaitable[None]]) -> None:
        """All steps, each at a random time from 0 to 1; ``until`` waits for that time."""
        for moment in sorted(self._random.random() for _ in range(self._steps)):
            await until(moment)
            step = self._random.choice(STEPS) if self.exists else "create"
            self.history.append(step)
            await getattr(self, f"_{step}")()

    def revisions_entered(self, defaults: Defaults) -> Counter[str]:
        """How often the spec moved to each revision, or began with it."""
        entered: Counter[str] = Counter()
        before = ("", "")
        for state in self.states:
            now = (state["metadata"]["uid"], revision(state, defaults))
            entered[now[1]] += now != before
            before = now
        return entered

    async def _create(self) -> None:
        service = fake_service(self._namespace, self.name, replicas=self._random.randint(0, 3))
        self.states.append(await self._administrator.create(service))
        self.exists = True

    async def _edit(self) -> None:
        change = self._random.choice(EDITS)
        self.states.append(await self._administrator.edit(self._namespace, self.name, change))

    async def _scale(self) -> None:
        await self._administrator.scale(self._namespace, self.name, self._random.randint(0, 3))
        self.states.append(await self._administrator.service(self._namespace, self.name))

    async def _delete(self) -> None:
        await self._administrator.delete(self._namespace, self.name)
        self.exists = False
