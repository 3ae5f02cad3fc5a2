"""One LLMService on the cluster, seen as its user sees it: by kubectl, and by HTTP."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from blade_protocol.labels import ROLE, ROLE_ENGINE, ROLE_ROUTER
from e2e.cluster.base import Cluster
from e2e.support.waiting import TimedOut, until

Object = dict[str, Any]
T = TypeVar("T")

DEMO_MODEL: Final = Path(__file__).resolve().parents[2] / "examples" / "demo_model"
CLAIM: Final = "demo-models"
ROUTER_PORT: Final = 8080
KINDS: Final = (
    "deployments,replicasets,statefulsets,controllerrevisions,pods,services,endpointslices,configmaps,secrets,"
    "serviceaccounts,persistentvolumeclaims,poddisruptionbudgets,networkpolicies,roles,rolebindings"
)
"""Everything an LLMService has, and what Kubernetes makes of it."""


def manifest(name: str, **spec: Any) -> Object:
    """A small demo service: ``spec`` replaces whole fields, those of ``engine`` and ``rollout`` one by one."""
    engine = {
        "dtype": "float32",
        "kvCacheBytes": "64Mi",
        "maxNumSeqs": 8,
        "shmSize": "64Mi",
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
    }
    wanted = {
        "model": {"uri": f"pvc://{CLAIM}/model"},
        "check": {"items": ["shm", "memoryFit", "modelFiles"]},
        **spec,
        "engine": {**engine, **spec.get("engine", {})},
        "rollout": {"drainTimeout": "5m", **spec.get("rollout", {})},
        "router": {"resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}, **spec.get("router", {})},
    }
    return {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name},
        "spec": wanted,
    }


class Service:
    """The LLMService ``name`` of ``namespace``; nothing is applied by making one."""

    def __init__(self, cluster: Cluster, namespace: str, name: str = "demo") -> None:
        self.cluster, self.namespace, self.name = cluster, namespace, name

    def apply(self, **spec: Any) -> None:
        """``kubectl apply`` of `manifest`, as its user does it."""
        document = json.dumps(manifest(self.name, **spec))
        self.kubectl("apply", "-f", "-", input=document)

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, input=input, check=check)

    def json(self, *arguments: str) -> Object:
        return self.cluster.json("--namespace", self.namespace, *arguments)

    def get(self) -> Object:
        return self.json("get", "llm", self.name)

    def status(self) -> Object:
        """The status as written last; empty before the operator saw the service."""
        return dict(self.get().get("status") or {})

    def condition(self, kind: str) -> Object:
        conditions = self.status().get("conditions", ())
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def wait_ready(self, timeout: int = 120) -> None:
        """``kubectl wait``, and what the status says if that was in vain."""
        argv = ["kubectl", "-n", self.namespace, "wait", "--for=condition=Ready", f"llm/{self.name}"]
        done = self.cluster.run([*argv, f"--timeout={timeout}s"])
        assert done.returncode == 0, f"{done.stderr}{json.dumps(self.status(), indent=1)}"

    def wait_until_converged(self, replicas: int | None = None, timeout: float = 120.0) -> None:
        """Wait until status observes the newest spec and exactly its engines and routers run, all Ready.

        ``replicas``: how many engines are to be wanted by then.
        """

        def converged() -> bool:
            service = self.get()
            status = service.get("status") or {}
            wanted = status.get("desiredReplicas")
            if replicas not in (None, wanted):
                return False
            done = (status.get("observedGeneration"), status.get("phase"), status.get("readyReplicas"))
            if done != (service["metadata"]["generation"], "Ready", wanted) or status["revision"]["updating"]:
                return False
            pods = self.objects("pods")
            roles = Counter(pod["metadata"]["labels"][ROLE] for pod in pods)
            routers = service["spec"]["router"]["replicas"]
            return roles == Counter({ROLE_ENGINE: wanted, ROLE_ROUTER: routers}) and all(map(is_ready, pods))

        self.until(converged, "at rest as declared", timeout)

    def until(self, condition: Callable[[], T], what: str, timeout: float = 90.0) -> T:
        """`waiting.until`, with the status in the error."""
        try:
            return until(condition, timeout, f"{self.name} {what}")
        except TimedOut as error:
            raise TimedOut(f"{error}\n{json.dumps(self.status(), indent=1)}") from None

    def objects(self, kinds: str, selector: str = "") -> list[Object]:
        """Objects of this service."""
        mine = f"serving.bladellm.io/name={self.name}" + (f",{selector}" if selector else "")
        found: list[Object] = self.json("get", kinds, "-l", mine)["items"]
        return found

    def pods(self, role: str) -> list[Object]:
        """All that exist, leaving ones too, by name."""
        found = self.objects("pods", f"serving.bladellm.io/role={role}")
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def engine_deployments(self) -> list[Object]:
        return self.objects("deployments", "serving.bladellm.io/role=engine")

    def left(self) -> list[str]:
        """What is still there of it, as ``Kind/name``."""
        found = self.objects(KINDS)
        return [f"{obj['kind']}/{obj['metadata']['name']}" for obj in found]

    @contextmanager
    def reach(self) -> Iterator[str]:
        """Base URL of its router's Service, usable from here."""
        with self.cluster.reach(self.namespace, f"{self.name}-router", ROUTER_PORT) as url:
            yield url

    def delete(self, timeout: float = 120.0) -> None:
        """Delete it and wait until nothing of it is left."""
        self.kubectl("delete", "llm", self.name, "--ignore-not-found", "--wait=false")
        self.gone(timeout)

    def gone(self, timeout: float = 120.0) -> None:
        """Wait until nothing of it is left."""
        left = self.left
        until(lambda: not left() or None, timeout, f"nothing left of {self.name}")


def is_ready(pod: Object) -> bool:
    """Ready and not leaving."""
    conditions = {entry["type"]: entry["status"] for entry in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def names(pods: list[Object]) -> list[str]:
    return [str(pod["metadata"]["name"]) for pod in pods]
