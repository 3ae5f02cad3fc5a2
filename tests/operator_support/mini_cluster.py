"""A fake cluster in memory for tests of reconcile: it stores what is applied and creates pods in chosen states."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from blade_operator.adapters.object_status import updated
from blade_operator.model import pods as podutil
from blade_operator.model.controllers import CONTROLLERS, pod_template_of
from blade_operator.model.objects import Object, Ref
from blade_operator.model.observed import Observed, needs_signals
from blade_operator.model.plan import EventRecord, LoadAdapter, Plan, UnloadAdapter
from blade_operator.reconcile.reconcile import reconcile
from blade_operator.render import Defaults
from blade_operator.scaling.autoscaler import Autoscaler
from blade_operator.spec import apply_defaults
from blade_protocol.adapters import AdapterInfo
from blade_protocol.check import CheckItem, CheckReport
from blade_protocol.fetch import FetchProgress
from blade_protocol.labels import (
    ADAPTER_KIND,
    API_VERSION,
    DELETION_COST,
    DRAINING_SINCE,
    KIND,
    REVISION,
    STANDBY_SINCE,
    WOKEN_AT,
)
from blade_protocol.signals import RouterSignals
from blade_protocol.state import EngineState, MemoryPlan
from operator_support import leader_worker_sets


def service(spec: dict[str, Any] | None = None, name: str = "qwen", **metadata: Any) -> Object:
    """An LLMService as the store keeps it: defaults filled in."""
    return apply_defaults(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": "0f0f",
                "generation": 1,
                "creationTimestamp": "2026-01-01T00:00:00Z",
                **metadata,
            },
            "spec": {"model": {"uri": "file:///models/qwen"}, **(spec or {})},
        }
    )


def memory(kv_tokens: int = 4096, weights: int = 1 << 30) -> MemoryPlan:
    return MemoryPlan(
        weights=weights,
        activation_peak=1 << 26,
        graphs=96 << 20,
        kv_cache=1 << 28,
        kv_block_bytes=1 << 16,
        kv_blocks=kv_tokens // 16,
        kv_tokens=kv_tokens,
        max_model_len=1024,
        concurrent_at_max_len=kv_tokens / 1024,
    )


def engine_state(pod: Object, plan: MemoryPlan | None = None, lora: dict[str, Any] | None = None) -> EngineState:
    return EngineState(
        model="qwen",
        revision=podutil.revision(pod),
        ready=True,
        draining=False,
        running=0,
        waiting=0,
        kv_blocks_total=256,
        kv_blocks_free=256,
        prompt_tokens_total=0,
        cached_tokens_total=0,
        generation_tokens_total=0,
        preemptions_total=0,
        epoch="1",
        sequence=0,
        memory=plan or memory(),
        max_adapters=0 if lora is None else 4 * lora["maxGPU"],
    )


_MARKS = (DELETION_COST, DRAINING_SINCE, STANDBY_SINCE, WOKEN_AT)
_FILLED_IN = {
    "Deployment": {"progressDeadlineSeconds": 600},
    "StatefulSet": {"minReadySeconds": 600},
    "LeaderWorkerSet": {"rolloutStrategy": {"type": "RollingUpdate"}},
}


def _deletion_order(pod: Object) -> tuple[bool, int]:
    """A ReplicaSet's."""
    return podutil.is_ready(pod), int(pod["metadata"].get("annotations", {}).get(DELETION_COST, "0"))


class MiniCluster:
    """One service, its children, and the controllers of a cluster, each of which runs only when it is called."""

    has_leader_worker_sets = False

    def __init__(self, obj: Object, defaults: Defaults | None = None) -> None:
        self.service = obj
        self.defaults = defaults or Defaults(engine_image="engine:1", router_image="operator:1")
        self.objects: dict[Ref, Object] = {}
        self.pods: list[Object] = []
        self.engines: dict[str, EngineState] = {}
        self.deaf: set[str] = set()
        """Engines that do not drain when they are told to."""
        self.adapters: dict[str, dict[str, AdapterInfo]] = {}
        """What engines list, by pod; with ``spec.engine.lora`` each that is ready has a list."""
        self.broken: dict[str, str] = {}
        """By path of an adapter why no engine can load it."""
        self.lora_adapters: dict[str, Object] = {}
        """LoRAAdapters of the namespace, by name."""
        self.downloads: dict[str, FetchProgress] = {}
        self.rejected: dict[Ref, str] = {}
        self.abandoned = False
        self.unauthorized: set[str] = set()
        self.signals: Callable[[float], Mapping[str, RouterSignals]] = lambda at: {}
        """What routers say at a time; they are asked at each reconcile."""
        self.signals_queried = True
        """Whether a reconcile asks them; else the decision loop does."""
        self.autoscaler: Autoscaler | None = None
        """What the operator remembers; a restarted one nothing."""
        self.events: list[EventRecord] = []
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self._made = 0

    # the operator

    def observed(self) -> Observed:
        of_kind: Callable[[str], tuple[Object, ...]] = lambda kind: tuple(  # noqa: E731
            obj for ref, obj in self.objects.items() if ref.kind == kind
        )
        known = (*CONTROLLERS, "Service", "ConfigMap", "ControllerRevision")
        return copy.deepcopy(
            Observed(
                service=self.service,
                deployments=of_kind("Deployment"),
                group_objects=of_kind("StatefulSet") + of_kind("LeaderWorkerSet"),
                services=of_kind("Service"),
                config_maps=of_kind("ConfigMap"),
                revisions=of_kind("ControllerRevision"),
                others=tuple(obj for ref, obj in self.objects.items() if ref.kind not in known),
                pods=tuple(self.pods),
                lora_adapters=tuple(self.lora_adapters.values()),
                engines=self.engines,
                adapters={pod: tuple(each.values()) for pod, each in self.adapters.items() if pod in self.engines},
                downloads=self.downloads,
                rejected=self.rejected,
                signals=(
                    self.signals(self.now.timestamp()) if self.signals_queried and needs_signals(self.service) else {}
                ),
                signals_queried=self.signals_queried,
                autoscaler=self.autoscaler,
                has_leader_worker_sets=self.has_leader_worker_sets,
                abandoned=self.abandoned,
                unauthorized=frozenset(self.unauthorized),
            )
        )

    def plan(self) -> Plan:
        self.now += timedelta(seconds=1)
        return reconcile(self.observed(), self.now, self.defaults)

    def reconcile(self) -> Plan:
        """Plan, and execute the plan."""
        plan = self.plan()
        self.autoscaler = plan.autoscaler
        if plan.claim is not None:
            self.service["status"] = plan.claim
        for action in plan.actions:
            if isinstance(action, LoadAdapter):
                self._load(action)
            elif isinstance(action, UnloadAdapter):
                self.adapters[action.pod].pop(action.name, None)
            elif action.pod in self.engines and action.pod not in self.deaf:
                drained = msgspec.structs.replace(
                    self.engines[action.pod], draining=action.draining, standby=action.standby
                )
                self.engines[action.pod] = drained
        for obj in plan.replace:
            self.objects[Ref.of(obj)] = self._as_server(obj)
        for obj in plan.apply:
            if obj["kind"] == "Secret" and Ref.of(obj) in self.objects:
                continue  # it is only made
            if obj["kind"] == "Pod":
                self._annotate(obj)
            else:
                self.objects[Ref.of(obj)] = self._as_server(obj)
        for prune in plan.prune:
            for path in prune.paths:
                *parents, last = path.lstrip("/").split("/")
                place: Any = self.objects[prune.ref]
                for step in parents:
                    place = place[int(step)] if isinstance(place, list) else place[step]
                del place[int(last)]
        for ref in plan.delete:
            self.objects.pop(ref, None)
        for name, entry in plan.lora_adapters.items():
            obj = self.lora_adapters[name]
            obj["status"] = updated(obj, self.service["metadata"]["name"], entry, self.now)
        if plan.status is not None:
            self.service["status"] = plan.status
        self.events += plan.events
        return plan

    def converge(self, rounds: int = 30) -> None:
        """Run operator and controllers in turn until nothing changes; pods become ready, terminating pods end."""
        for _ in range(rounds):
            self.reconcile()
            self.run_controllers()
            self.remove_terminating_pods()
            leader_worker_sets.collect(self)
            for pod in self.pods:
                self.become_ready(pod)
            plan = self.reconcile()
            rest = Plan(requeue_after=plan.requeue_after, autoscaler=plan.autoscaler, scale_target=plan.scale_target)
            if plan == rest and not any(map(podutil.is_terminating, self.pods)):
                return
        raise AssertionError(f"not converged after {rounds} rounds: {plan}")

    # the user

    def edit(self, **spec: Any) -> None:
        """Replace fields of the spec, as ``kubectl apply`` would."""
        self.service = apply_defaults({**self.service, "spec": {**self.service["spec"], **spec}})
        self.service["metadata"]["generation"] += 1

    def add_adapter(self, name: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
        """Apply a LoRAAdapter; those made later are younger."""
        metadata = {"name": name, "namespace": "team", "labels": labels or {}, "generation": 1}
        metadata["creationTimestamp"] = f"2026-01-01T00:00:{len(self.lora_adapters):02}Z"
        spec = {"uri": f"file:///adapters/{name}", **spec}
        obj = {"apiVersion": API_VERSION, "kind": ADAPTER_KIND, "metadata": metadata, "spec": spec}
        self.lora_adapters[name] = apply_defaults(obj)

    # the controllers and kubelets

    def run_controllers(self) -> None:
        """Create and delete pods until every object that makes pods has its replicas."""
        leader_worker_sets.run(self)
        for ref, stateful_set in self.objects.items():
            if ref.kind == "StatefulSet":
                names = {pod["metadata"]["name"] for pod in self.of(ref.name)}  # a name is free once its pod is gone
                wanted = [f"{ref.name}-{index}" for index in range(stateful_set["spec"]["replicas"])]
                self.pods += [self.make_pod(stateful_set, name) for name in wanted if name not in names]
        for ref, deployment in self.objects.items():
            if ref.kind != "Deployment":
                continue
            mine = [
                pod for pod in self.of(ref.name) if not podutil.is_terminating(pod) and not podutil.is_finished(pod)
            ]
            wanted = deployment["spec"]["replicas"]
            mine = self._rolled(deployment, mine)
            for pod in sorted(mine, key=_deletion_order)[: max(0, len(mine) - wanted)]:
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.pods += [self.make_pod(deployment) for _ in range(wanted - len(mine))]
        # Garbage collection: the pods of what was deleted are deleted, too.
        for pod in self.pods:
            owners = {Ref(kind, "team", pod["owner"]) for kind in CONTROLLERS}
            if not leader_worker_sets.is_worker(pod) and not owners & {*self.objects}:
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    def _rolled(self, deployment: Object, pods: list[Object]) -> list[Object]:
        """One step of a rolling update, maxSurge 1 and maxUnavailable 0; the pods that count for the replicas."""
        template = deployment["spec"]["template"]["metadata"]["labels"]
        current = [pod for pod in pods if podutil.revision(pod) == template.get(REVISION, "")]
        stale = [pod for pod in pods if pod not in current]
        wanted = deployment["spec"]["replicas"]
        for pod in stale[: max(0, sum(map(podutil.is_ready, current)) + len(stale) - wanted)]:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if stale and len(pods) <= wanted:
            self.pods.append(self.make_pod(deployment))
        return [pod for pod in pods if not podutil.is_terminating(pod)] if not stale else pods[:wanted]

    def remove_terminating_pods(self) -> None:
        self.pods = [pod for pod in self.pods if not podutil.is_terminating(pod)]

    def of(self, deployment: str) -> list[Object]:
        return [pod for pod in self.pods if pod["owner"] == deployment]

    @property
    def engine_pods(self) -> list[Object]:
        return [pod for pod in self.pods if podutil.role(pod) == "engine"]

    def become_ready(self, pod: Object) -> None:
        """All its programs run, and pass their probes; one on standby does not pass that of readiness."""
        if podutil.role(pod) == "engine" and pod["spec"].get("initContainers"):
            self.check(pod, CheckItem(name="check_shm", status="PASS", detail="shared Memory is 1073741824 bytes"))
        for status in pod["status"]["containerStatuses"]:
            status |= {"ready": True, "started": True, "state": {"running": {}}}
        self._ready(pod, True)
        if podutil.role(pod) == "engine":
            self.engines.setdefault(
                pod["metadata"]["name"], engine_state(pod, lora=self.service["spec"]["engine"].get("lora"))
            )
            if self.engines[pod["metadata"]["name"]].max_adapters:
                self.adapters.setdefault(pod["metadata"]["name"], {})
            if self.engines[pod["metadata"]["name"]].standby:
                pod["status"]["containerStatuses"][0]["ready"] = False
                self._ready(pod, False)

    def check(self, pod: Object, *items: CheckItem, exit_code: int = 0, fetched: str = "") -> None:
        """End the check of ``pod`` with a report of these items."""
        count = {status: sum(item.status == status for item in items) for status in ("PASS", "WARNING", "FAILED")}
        report = CheckReport(
            passed=count["PASS"], warnings=count["WARNING"], failed=count["FAILED"], items=tuple(items)
        )
        self.terminate_container(pod, "check", exit_code, msgspec.json.encode(report).decode())

    def terminate_container(self, pod: Object, name: str, exit_code: int, message: str = "", reason: str = "") -> None:
        """End the container ``name``; one that failed waits in ``CrashLoopBackOff``."""
        field = "initContainerStatuses" if name in ("fetch", "check") else "containerStatuses"
        status = next(status for status in pod["status"][field] if status["name"] == name)
        default = "Completed" if exit_code == 0 else "Error"
        ended = {"terminated": {"exitCode": exit_code, "reason": reason or default, "message": message}}
        if exit_code == 0 and field == "initContainerStatuses":
            status |= {"ready": True, "state": ended}
            return
        waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
        status |= {"ready": False, "started": False, "state": {"waiting": waiting}, "lastState": ended}
        status["restartCount"] += 1
        self._ready(pod, False)
        self.engines.pop(pod["metadata"]["name"], None)
        self.adapters.pop(pod["metadata"]["name"], None)

    def restart(self, pod: Object, name: str = "engine") -> None:
        """Restart the container ``name``, as after its back-off."""
        status = next(status for status in pod["status"]["containerStatuses"] if status["name"] == name)
        status |= {"state": {"running": {}}}

    def _load(self, action: LoadAdapter) -> None:
        """Load an adapter as an engine does: what is broken takes nobody's place."""
        listed, why = self.adapters[action.pod], self.broken.get(action.path, "")
        before = listed.get(action.name)
        if why and before is not None and before.state == "loaded":
            listed[action.name] = msgspec.structs.replace(before, reason=why)
            return
        listed[action.name] = AdapterInfo(
            name=action.name,
            path=action.path,
            tier="disk" if why else "host",
            rank=8,
            nbytes=0 if why else 1000,
            digest="" if why else "d",
            pinned=action.pinned,
            state="failed" if why else "loaded" if action.preload else "registered",
            reason=why,
        )

    def _ready(self, pod: Object, ready: bool) -> None:
        pod["status"]["conditions"] = [{"type": "Ready", "status": "True" if ready else "False"}]

    def _annotate(self, applied: Object) -> None:
        for pod in self.pods:
            if pod["metadata"]["name"] == applied["metadata"]["name"]:
                others = {k: v for k, v in pod["metadata"].get("annotations", {}).items() if k not in _MARKS}
                pod["metadata"]["annotations"] = others | applied["metadata"].get("annotations", {})
                pod["metadata"]["labels"].update(applied["metadata"].get("labels", {}))

    def make_pod(self, deployment: Object, stable_name: str = "") -> Object:
        self._made += 1
        template = copy.deepcopy(pod_template_of(deployment))
        waiting = {"ready": False, "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}
        name = deployment["metadata"]["name"]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "owner": name,
            "metadata": {
                **template["metadata"],
                "name": stable_name or f"{name}-{self._made}",
                "namespace": "team",
                "uid": f"uid-{self._made}",
            },
            "spec": template["spec"],
            "status": {
                "phase": "Pending",
                "conditions": [{"type": "Ready", "status": "False"}],
                "initContainerStatuses": [
                    {"name": entry["name"], **copy.deepcopy(waiting)}
                    for entry in template["spec"].get("initContainers", ())
                ],
                "containerStatuses": [
                    {"name": entry["name"], **copy.deepcopy(waiting)} for entry in template["spec"]["containers"]
                ],
            },
        }

    def _as_server(self, obj: Object) -> Object:
        """``obj`` with the fields that an API server adds."""
        stored = copy.deepcopy(obj)
        before = self.objects.get(Ref.of(obj), {}).get("metadata", {})
        stored["metadata"].setdefault("creationTimestamp", before.get("creationTimestamp", self.now.isoformat()))
        stored["metadata"]["resourceVersion"] = str(int(before.get("resourceVersion", "0")) + 1)
        if stored["kind"] in CONTROLLERS:
            stored["spec"] |= copy.deepcopy(_FILLED_IN[stored["kind"]])
            for container in pod_template_of(stored)["spec"]["containers"]:
                container["terminationMessagePath"] = "/dev/termination-log"
                container["imagePullPolicy"] = "IfNotPresent"
        return stored
