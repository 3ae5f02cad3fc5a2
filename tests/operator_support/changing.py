"""A service of the local runtime under load, and the changes that are to lose none of its requests.

A change is one function of `CHANGES`: it changes the service and returns once that has settled.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from blade_operator.cluster.local.commands import send
from blade_operator.cluster.local.pod_status import is_ready, is_terminating
from blade_operator.model.objects import Object
from blade_operator.model.pods import stands_by
from blade_protocol.labels import ROLE, ROLE_ENGINE, ROLE_ROUTER
from e2e.support.completions import Question
from e2e.support.steady_load import USERS, Kind, SteadyLoad
from operator_support.local import pid_of
from operator_support.loop import Loop, manifest

NAME: Final = "qwen"
EXAMPLES: Final = Path(__file__).parents[2] / "examples"
KEPT: Final = {"name": "polite", "uri": f"file://{EXAMPLES}/lora/adapter"}
"""An adapter of the demo model that a service has throughout, and is asked for."""
SECONDS: Final = 120.0
"""A step of a change is done within so long, also where many others compute."""
OTHER: Final = {"name": "pirate", "uri": f"file://{EXAMPLES}/demo_model/adapter"}


class Changing:
    """The service of one `Loop`, as it is and as it is to be."""

    def __init__(self, running: Loop, model: Path, seed: int = 0, **spec: Any) -> None:
        self.loop, self.model = running, model
        self.spec: dict[str, Any] = {"replicas": 2, "check": {"mode": "Off"}, **spec}
        self.rng = random.Random(seed)
        self.turn = 0
        """How often something was changed: what alternates goes by it."""
        self.code: int | None = 0
        """How commands end; None where the loop may die at them."""

    def start(self) -> None:
        self.loop.start("-f", str(self._manifest()))
        self.settled()

    def load(self, asked: Sequence[Question] | None = None, users: Sequence[Kind] = USERS) -> SteadyLoad:
        return SteadyLoad(f"http://127.0.0.1:{self.loop.port}", asked, users)

    def apply(self, **spec: Any) -> None:
        """Change fields of the spec; of engine and router only those named."""
        for name, value in spec.items():
            self.spec[name] = {**self.spec.get(name, {}), **value} if isinstance(value, dict) else value
        self.loop.command("apply", "-f", str(self._manifest()), code=self.code)

    def replace_engines(self) -> None:
        """Apply another revision."""
        self.turn += 1
        self.apply(engine={"maxNumSeqs": 8 + self.turn % 2})

    def replace_all(self) -> None:
        """Apply another revision, and other routers."""
        self.turn += 1
        router = {"resources": {"limits": {"memory": f"{1 + self.turn % 2}Gi"}}}
        self.apply(engine={"maxNumSeqs": 8 + self.turn % 2}, router=router)

    def delete_pod(self, role: str) -> None:
        """As an eviction does, of one at random."""
        pod = self.rng.choice(self.pods(role))
        send(self.loop.layout, "delete", kind="Pod", namespace="default", name=pod["metadata"]["name"])
        self.loop.until(lambda: is_gone(self, pod), SECONDS)

    def pods(self, role: str) -> list[Object]:
        """Those that serve, by name."""
        pods = [pod for pod in self.loop.objects("Pod") if pod["metadata"]["labels"][ROLE] == role]
        return [pod for pod in pods if is_ready(pod) and not is_terminating(pod)]

    def ended_pods(self) -> set[str]:
        """Pods whose containers got their SIGTERM."""
        events = self.loop.objects("Event")
        return {event["involvedObject"]["name"] for event in events if event["reason"] == "Killing"}

    def engine_pid(self) -> int:
        """The process of one engine at random."""
        return pid_of(self.rng.choice(self.pods(ROLE_ENGINE)))

    def settled(self) -> None:
        """Wait until exactly what the spec declares runs and is ready."""
        self.loop.until(self.is_settled, SECONDS)

    def is_settled(self) -> bool:
        service = self.loop.service(NAME)
        status = service.get("status", {})
        pods = self.loop.objects("Pod")
        standby = self.spec.get("scaling", {}).get("standby", 0)
        wanted = self.spec["replicas"] + standby + self.spec.get("router", {}).get("replicas", 1)
        return (
            status.get("observedGeneration") == service.get("metadata", {}).get("generation", 0)
            and self.loop.ready(NAME, self.spec["replicas"])
            and self.loop.condition(NAME, "Reconciling") == "False"
            and self._has_adapters(status.get("adapters", []))
            and len(pods) == wanted
            and all(is_ready(pod) != stands_by(pod) and not is_terminating(pod) for pod in pods)
            and sum(map(stands_by, pods)) == standby
        )

    def _has_adapters(self, reported: list[Object]) -> bool:
        """Every engine has just those of the spec."""
        wanted = {each["name"]: self.spec["replicas"] for each in self.spec.get("adapters", ())}
        return {entry["name"]: entry["loaded"] for entry in reported} == wanted

    def _manifest(self) -> Path:
        return manifest(self.loop.folder, NAME, model=self.model, **self.spec)


def is_gone(service: Changing, pod: Object) -> bool:
    return pod["metadata"]["uid"] not in {each["metadata"]["uid"] for each in service.loop.objects("Pod")}


def engines_replaced(service: Changing) -> None:
    service.replace_engines()
    service.settled()


def rollout_taken_back(service: Changing) -> None:
    """At some moment in the middle of it."""
    service.replace_engines()
    time.sleep(service.rng.uniform(0.0, 6.0))
    service.replace_engines()
    service.settled()


def scaled_down_and_up(service: Changing) -> None:
    """From 4 to 1, and to 4 again."""
    for replicas in (4, 1, 4):
        service.apply(replicas=replicas)
        service.settled()


def router_policy_changed(service: Changing) -> None:
    """In place: no router restarts."""
    service.turn += 1
    before = service.pods(ROLE_ROUTER)
    service.apply(router={"policy": ("auto", "roundRobin")[service.turn % 2]})
    service.settled()
    time.sleep(1.5)  # mounted files follow their ConfigMap within a second
    assert [pod["metadata"]["uid"] for pod in before] == [pod["metadata"]["uid"] for pod in service.pods(ROLE_ROUTER)]


def routers_replaced(service: Changing) -> None:
    """By another pod template, as by another image."""
    service.turn += 1
    before = service.pods(ROLE_ROUTER)
    service.apply(router={"resources": {"limits": {"memory": f"{1 + service.turn % 2}Gi"}}})
    service.loop.until(lambda: all(is_gone(service, pod) for pod in before), SECONDS)
    service.settled()


def router_workers_changed(service: Changing) -> None:
    """Routers of one process and of two replace each other."""
    service.turn += 1
    before = service.pods(ROLE_ROUTER)
    service.apply(router={"workers": 1 + service.turn % 2})
    service.loop.until(lambda: all(is_gone(service, pod) for pod in before), SECONDS)
    service.settled()


def routers_scaled(service: Changing) -> None:
    for replicas in (1, 3, 2):
        service.apply(router={"replicas": replicas})
        service.settled()


def engine_evicted(service: Changing) -> None:
    service.delete_pod(ROLE_ENGINE)
    service.settled()


def only_engine_evicted(service: Changing) -> None:
    """What comes until there is another one waits in the routers."""
    service.apply(replicas=1)
    service.settled()
    engine_evicted(service)


def router_evicted(service: Changing) -> None:
    service.delete_pod(ROLE_ROUTER)
    service.settled()


def engine_terminated(service: Changing) -> None:
    """SIGTERM that nobody announced: the container drains, ends and is started again."""
    _end(service, service.engine_pid(), signal.SIGTERM)


def engine_killed(service: Changing) -> None:
    """SIGKILL to the API server of an engine."""
    _end(service, service.engine_pid(), signal.SIGKILL)


def engine_process_killed(service: Changing) -> None:
    """SIGKILL to the process that computes."""
    children = psutil.Process(service.engine_pid()).children()
    [pid] = [each.pid for each in children if "blade_llm.engine.process" in each.cmdline()]
    _end(service, pid, signal.SIGKILL)


def _end(service: Changing, pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)
    service.loop.until(lambda: not psutil.pid_exists(pid), SECONDS)
    time.sleep(0.5)  # until the control loop has seen it
    service.settled()


def operator_killed(service: Changing) -> None:
    """While engines and routers are replaced, several times."""
    service.replace_all()
    for _ in range(3):
        time.sleep(service.rng.uniform(0.0, 2.0))
        service.loop.kill()
        service.loop.start()
    service.settled()


def adapters_changed(service: Changing) -> None:
    """Another adapter comes and goes beside the one that is asked for."""
    for adapters in ([KEPT, OTHER], [KEPT]):
        service.apply(adapters=adapters)
        service.settled()


def operator_killed_at_a_drain(service: Changing) -> None:
    """While the last engine of before finishes long streams: the next operator ends the same pod again."""
    service.apply(replicas=1)
    service.settled()
    service.replace_engines()
    [leaving] = [pod["metadata"]["name"] for pod in service.pods(ROLE_ENGINE)]
    service.loop.until(lambda: leaving in service.ended_pods(), SECONDS)
    time.sleep(0.5)  # the signal has come, too
    service.loop.kill()
    service.loop.start()
    service.settled()


def pool_turned(service: Changing) -> None:
    """More engines serve, the first of them from standby, and then fewer."""
    for serving in (3, 1):
        service.apply(replicas=serving, scaling={"min": serving, "max": serving})
        service.settled()


Change = Callable[[Changing], None]

CHANGES: Final[dict[str, Change]] = {
    change.__name__: change
    for change in (
        engines_replaced,
        rollout_taken_back,
        scaled_down_and_up,
        router_policy_changed,
        routers_replaced,
        router_workers_changed,
        routers_scaled,
        engine_evicted,
        only_engine_evicted,
        router_evicted,
        engine_terminated,
        engine_killed,
        engine_process_killed,
        operator_killed,
        operator_killed_at_a_drain,
    )
}
