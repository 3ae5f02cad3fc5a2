"""The StatefulSet controller of the local runtime: pods with names that stay, all started at once.

The pods of a set meet at a port of this machine where the first of them listens, which stands for its name in DNS. A
first pod that is made again listens elsewhere, so the others are made again, too.
"""

from __future__ import annotations

from typing import Final

from blade_operator.cluster.local.events import Events
from blade_operator.cluster.local.fields import port_variable
from blade_operator.cluster.local.pod_objects import PodObjects
from blade_operator.cluster.local.pod_status import is_ready, is_terminating
from blade_operator.cluster.local.scheduler import variable_of
from blade_operator.cluster.local.services import Services
from blade_operator.cluster.local.store import Store
from blade_operator.model.objects import Object, Ref
from blade_operator.render.workloads import MEETING
from blade_protocol.environment import LEADER
from blade_protocol.labels import POD_INDEX

_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"
_MEETING_VARIABLE: Final = port_variable(MEETING)


class StatefulSets:
    """The StatefulSet controller; ``sync`` creates and deletes Pod objects as the StatefulSets require."""

    def __init__(self, store: Store, events: Events, services: Services) -> None:
        self._store = store
        self._pods = PodObjects(store, events, services)

    def sync(self) -> None:
        """Create and delete pods, and write the statuses of StatefulSets."""
        for stateful_set in self._store.find("StatefulSet"):
            self._sync(stateful_set)

    def _sync(self, stateful_set: Object) -> None:
        pods = {pod["metadata"]["name"]: pod for pod in self._pods.of(stateful_set)}
        names = [f"{stateful_set['metadata']['name']}-{index}" for index in range(stateful_set["spec"]["replicas"])]
        for index, name in enumerate(names):
            if name not in pods:  # one that terminates has its name until it is gone
                # The first chooses where all meet. Where it is made again, that is another port.
                meeting = {MEETING: int(variable_of(pods[names[0]], _MEETING_VARIABLE))} if index else {}
                pods[name] = self._create(stateful_set, name, index, meeting)
        place = variable_of(pods[names[0]], _MEETING_VARIABLE)
        for name, pod in pods.items():
            lost = name in names and variable_of(pod, _MEETING_VARIABLE) != place
            if (name not in names or lost) and not is_terminating(pod):
                self._pods.delete(stateful_set, pod)
        active = [pod for pod in pods.values() if not is_terminating(pod)]
        status = {
            "observedGeneration": stateful_set["metadata"]["generation"],
            "replicas": len(active),
            "readyReplicas": sum(map(is_ready, active)),
        }
        self._store.write_status(Ref.of(stateful_set), status)

    def _create(self, stateful_set: Object, name: str, index: int, meeting: dict[str, int]) -> Object:
        labels = {POD_INDEX: str(index), _NAME_LABEL: name}
        variables = {LEADER: "127.0.0.1"}
        return self._pods.create(stateful_set, labels, name=name, elsewhere=meeting, variables=variables)
