"""Where the API server keeps each kind the operator deals with."""

from __future__ import annotations

from dataclasses import dataclass

from blade_operator.model.controllers import LEADER_WORKER_SET, LEADER_WORKER_SET_VERSION
from blade_operator.model.objects import Ref
from blade_protocol.labels import ADAPTER_KIND, ADAPTER_PLURAL, API_VERSION, KIND, MANAGED_BY, MANAGER, PLURAL


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object and its place in the API."""

    name: str
    api_version: str
    plural: str
    selector: str = f"{MANAGED_BY}={MANAGER}"
    """Which of them are watched; the server applies it."""
    watched: bool = True
    optional: bool = False
    """Services are reconciled also where it cannot be listed: it came with a later release, whose CRD or rights may be
    missing."""
    foreign: bool = False
    """It belongs to software that few clusters have: an optional kind whose absence is nothing to report."""

    @property
    def group(self) -> str:
        """The API group; empty for the core one."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version within the group."""
        return self.api_version.rpartition("/")[2]

    @property
    def list_params(self) -> dict[str, str]:
        """What a list or a watch is narrowed down by."""
        return {"labelSelector": self.selector} if self.selector else {}

    def path(self, namespace: str | None = None, name: str = "") -> str:
        """The path of one object, of all in a namespace, or of all there are."""
        root = "/api" if "/" not in self.api_version else "/apis"
        parts = [root, self.api_version, *(("namespaces", namespace) if namespace else ()), self.plural]
        return "/".join([*parts, name] if name else parts)


SERVICE = Kind(KIND, API_VERSION, PLURAL, selector="")
ADAPTER = Kind(ADAPTER_KIND, API_VERSION, ADAPTER_PLURAL, selector="", optional=True)
EVENT = Kind("Event", "v1", "events", watched=False)
LEASE = Kind("Lease", "coordination.k8s.io/v1", "leases", watched=False)
JOB = Kind("Job", "batch/v1", "jobs", watched=False)
"""Created by a command with its user's rights; the operator knows none."""
SECRET = Kind("Secret", "v1", "secrets", watched=False)
"""Written, never read back: the operator may not read the Secrets of users' namespaces."""

_ALL = (
    SERVICE,
    ADAPTER,
    EVENT,
    LEASE,
    SECRET,
    Kind("Deployment", "apps/v1", "deployments"),
    Kind("StatefulSet", "apps/v1", "statefulsets", optional=True),
    Kind(LEADER_WORKER_SET, LEADER_WORKER_SET_VERSION, "leaderworkersets", optional=True, foreign=True),
    Kind("ControllerRevision", "apps/v1", "controllerrevisions"),
    Kind("Pod", "v1", "pods"),
    Kind("Service", "v1", "services"),
    Kind("ConfigMap", "v1", "configmaps"),
    Kind("ServiceAccount", "v1", "serviceaccounts"),
    Kind("PersistentVolumeClaim", "v1", "persistentvolumeclaims"),
    Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
    Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
    Kind("Role", "rbac.authorization.k8s.io/v1", "roles"),
    Kind("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings"),
)
KINDS = {kind.name: kind for kind in _ALL}
WATCHED = tuple(kind for kind in _ALL if kind.watched)


def path_of(ref: Ref) -> str:
    """The path of one object."""
    return KINDS[ref.kind].path(ref.namespace, ref.name)
