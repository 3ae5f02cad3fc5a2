"""All that a status is made of, gathered once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blade_operator import pods as read
from blade_operator.objects import Object, Ref
from blade_operator.spec.errors import SpecError
from blade_operator.spec.parse import LLMService
from blade_protocol.fetch import FetchProgress
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER
from blade_protocol.state import EngineState


@dataclass(frozen=True, slots=True)
class Situation:
    """One service as it is now. ``service`` is None when its spec is invalid."""

    obj: Object
    service: LLMService | None
    invalid: SpecError | None
    pods: tuple[Object, ...]
    router_service: Object | None
    engines: Mapping[str, EngineState] = field(default_factory=dict)
    downloads: Mapping[str, FetchProgress] = field(default_factory=dict)
    deployments: tuple[Object, ...] = ()
    rejected: Mapping[Ref, str] = field(default_factory=dict)
    current: str = ""
    """Revision the spec asks for; empty when none is known."""
    previous: str = ""
    outdated: bool = False
    old_deployments: bool = False
    """Deployments of other revisions still exist."""

    @property
    def replicas(self) -> int:
        """Engines asked for; while the spec is invalid, as many as there are."""
        return self.service.spec.replicas if self.service else int(self.before.get("replicas", 0))

    @property
    def before(self) -> dict[str, Any]:
        """The status as written last."""
        return self.obj.get("status") or {}

    @property
    def engine_pods(self) -> list[Object]:
        """Engine pods that are not leaving, by name."""
        return [pod for pod in self._of(ROLE_ENGINE) if not read.is_terminating(pod) and not read.is_finished(pod)]

    @property
    def current_pods(self) -> list[Object]:
        """Engine pods of the current revision that are not leaving."""
        return [pod for pod in self.engine_pods if read.revision(pod) == self.current]

    @property
    def older_pods(self) -> list[Object]:
        """Engine pods of other revisions that are not leaving."""
        return [pod for pod in self.engine_pods if read.revision(pod) != self.current]

    @property
    def leaving_pods(self) -> list[Object]:
        """Engine pods that finish what they have."""
        return [pod for pod in self._of(ROLE_ENGINE) if read.is_terminating(pod) and not read.is_finished(pod)]

    @property
    def router_pods(self) -> list[Object]:
        """Router pods that are not leaving."""
        return [pod for pod in self._of(ROLE_ROUTER) if not read.is_terminating(pod) and not read.is_finished(pod)]

    def ended(self, role: str) -> list[Object]:
        """Pods of that role that were evicted or otherwise ended for good, while their records last."""
        return [pod for pod in self._of(role) if read.is_finished(pod) and not read.is_terminating(pod)]

    @property
    def ready_engines(self) -> int:
        return sum(map(read.is_ready, self.engine_pods))

    def condition(self, kind: str) -> dict[str, Any]:
        """The condition of that type as written last; empty when there is none."""
        return next((entry for entry in self.before.get("conditions", ()) if entry["type"] == kind), {})

    def _of(self, role: str) -> list[Object]:
        mine = [pod for pod in self.pods if read.role(pod) == role]
        return sorted(mine, key=lambda pod: str(pod["metadata"]["name"]))
