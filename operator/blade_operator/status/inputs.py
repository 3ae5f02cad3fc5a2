"""All inputs of a status, gathered once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blade_operator.adapters.decide import AdapterStatus
from blade_operator.model import pods as podutil
from blade_operator.model.canary import Canary
from blade_operator.model.deployments import router_replicas
from blade_operator.model.groups import Group, as_engine
from blade_operator.model.objects import Object, Ref
from blade_operator.model.rollout import RolloutState
from blade_operator.scaling.autoscaler import Judgement
from blade_operator.spec.errors import SpecError
from blade_operator.spec.parse import LLMService
from blade_protocol.fetch import FetchProgress
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER
from blade_protocol.signals import RouterSignals
from blade_protocol.state import EngineState


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """Everything that the status of one service depends on. ``service`` is None when its spec is invalid."""

    obj: Object
    service: LLMService | None
    invalid: SpecError | None
    pods: tuple[Object, ...]
    router_service: Object | None
    groups: Sequence[Group] = ()
    """Engines on several machines; ``pods`` has one pod for each."""
    engines: Mapping[str, EngineState] = field(default_factory=dict)
    downloads: Mapping[str, FetchProgress] = field(default_factory=dict)
    unauthorized: frozenset[str] = frozenset()
    adapters: Sequence[AdapterStatus] | None = None
    """The LoRA adapters of the spec; None: it is invalid."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Names of selected LoRAAdapters that the service cannot have, each with the reason."""
    deployments: tuple[Object, ...] = ()
    rejected: Mapping[Ref, str] = field(default_factory=dict)
    current: str = ""
    """Revision that the spec stands for; empty when none is known."""
    previous: str = ""
    rollout: RolloutState = field(default_factory=RolloutState)
    """Where the change to the current revision stands."""
    router_revision: str = ""
    """Of the template that routers are to have; empty when none is known."""
    outdated: bool = False
    installation: str = ""
    """The installation of the operator that writes the status; empty in the local runtime."""
    old_deployments: bool = False
    """Deployments of other revisions than the target still exist."""
    scaling: Mapping[str, Any] | None = None
    """``status.scaling``; None: there is none."""
    scaling_judgement: Judgement | None = None
    """Of the number of engines; None: nobody decides on it."""
    standby: int = 0
    """Engines that are to stand by, beyond those desired."""
    signals: Mapping[str, RouterSignals] | None = None
    """Of routers, by pod name; None: they were not asked."""
    canary: Canary | None = None
    waits_for_routers: bool = False
    """No engine of the current revision is started yet: it would refuse the requests of routers that are there."""

    @property
    def replicas(self) -> int:
        """Number of desired engines; while the spec is invalid, the number that exists."""
        return self.service.spec.replicas if self.service else int(self.last_status.get("replicas", 0))

    @property
    def all_replicas(self) -> int:
        """Number of desired engines, and of those that are to stand by."""
        return self.replicas + self.standby

    @property
    def standing_by(self) -> int:
        """Engines that stand by."""
        return int((self.scaling or {}).get("standby", 0))

    @property
    def sleeps(self) -> bool:
        """No engine is to be there, and the next request wakes the service."""
        scaling = self.service.spec.scaling if self.service else None
        return scaling is not None and scaling.wakes and self.replicas == 0

    @property
    def routers(self) -> int:
        """Number of desired routers: what an autoscaler says where it is left to one; 0 while the spec is invalid."""
        if self.service is None:
            return 0
        router = self.service.spec.router
        there = router_replicas(self.deployments) if router.scaling == "External" else None
        return router.replicas if there is None else there

    @property
    def last_status(self) -> dict[str, Any]:
        """The status as it was written last."""
        return self.obj.get("status") or {}

    @property
    def engine_pods(self) -> list[Object]:
        """Engine pods that do not terminate, sorted by name."""
        return [pod for pod in self._of(ROLE_ENGINE) if podutil.is_active(pod)]

    @property
    def refusing_pods(self) -> list[Object]:
        """Engine pods that do not accept the operator's internal token."""
        return [pod for pod in self.engine_pods if pod["metadata"]["name"] in self.unauthorized]

    @property
    def target(self) -> str:
        """Revision that engines are to have now: the current one, unless its change is held or was rolled back."""
        return self.rollout.target or self.current

    @property
    def same_engines(self) -> bool:
        """Whether the last status speaks of engines of the same revision as this one."""
        before = self.last_status.get("revision") or {}
        if (before.get("current"), before.get("failed", "")) != (self.current, self.rollout.failed):
            return False
        # The change was held until now.
        begins = self.target == self.current and self.updated_pods and not self.last_status.get("updatedReplicas")
        return not (begins and before.get("stable", self.current) != self.current)

    @property
    def current_pods(self) -> list[Object]:
        """Engine pods of the target revision that do not terminate."""
        return [pod for pod in self.engine_pods if podutil.revision(pod) == self.target]

    @property
    def older_pods(self) -> list[Object]:
        """Engine pods of other revisions that do not terminate."""
        return [pod for pod in self.engine_pods if podutil.revision(pod) != self.target]

    @property
    def updated_pods(self) -> list[Object]:
        """Engine pods of the revision that the spec stands for; none that terminates."""
        return [pod for pod in self.engine_pods if podutil.revision(pod) == self.current]

    @property
    def terminating_pods(self) -> list[Object]:
        """Engine pods that drain."""
        return [pod for pod in self._of(ROLE_ENGINE) if podutil.is_terminating(pod) and not podutil.is_finished(pod)]

    @property
    def router_pods(self) -> list[Object]:
        """Router pods that do not terminate."""
        return [pod for pod in self._of(ROLE_ROUTER) if podutil.is_active(pod)]

    @property
    def older_routers(self) -> list[Object]:
        """Router pods of an earlier template that do not terminate."""
        wanted = self.router_revision
        return [pod for pod in self.router_pods if wanted and podutil.revision(pod) != wanted]

    def machines_of(self, pods: Iterable[Object]) -> list[Object]:
        """``pods``, but all of them of an engine on several machines."""
        members = {group.pods[0]["metadata"]["name"]: group.pods for group in self.groups if group.pods}
        found: list[Object] = []
        for pod in pods:
            group = members.get(pod["metadata"]["name"])
            found += [pod] if group is None else map(as_engine, group)
        return found

    def finished_pods(self, role: str) -> list[Object]:
        """Pods of that role that were evicted or otherwise ended for good and are not deleted yet."""
        return [pod for pod in self._of(role) if podutil.is_finished(pod) and not podutil.is_terminating(pod)]

    @property
    def ready_engines(self) -> int:
        """Number of engine pods that are ready."""
        return sum(map(podutil.is_ready, self.engine_pods))

    def last_condition(self, kind: str) -> dict[str, Any]:
        """The condition of that type as it was written last; empty when there is none."""
        return next((entry for entry in self.last_status.get("conditions", ()) if entry["type"] == kind), {})

    def _of(self, role: str) -> list[Object]:
        mine = [pod for pod in self.pods if podutil.role(pod) == role]
        return sorted(mine, key=lambda pod: str(pod["metadata"]["name"]))
