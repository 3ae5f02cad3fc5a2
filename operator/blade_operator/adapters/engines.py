"""What is known of the LoRA adapters on each engine pod of a service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.model.observed import Observed
from blade_protocol.adapters import AdapterInfo
from blade_protocol.labels import ROLE_ENGINE


@dataclass(frozen=True, slots=True)
class EngineAdapters:
    """One engine pod that serves adapters."""

    pod: str
    target: bool
    """It may be given adapters: it is ready and stays."""
    leaving: bool
    """It is to be deleted, and still takes requests or ends those it has."""
    listed: Mapping[str, AdapterInfo] | None
    """Its list, by name of the adapter; None: it did not respond."""
    capacity: int = 0
    """Adapters that its host memory has room for; 0: not known."""

    def has(self, name: str, path: str, *, registered: bool) -> bool:
        """Whether it answers requests for the adapter that has this path, ``registered``: also if not read yet."""
        info = (self.listed or {}).get(name)
        if info is None or not same_path(info.path, path):
            return False
        return info.state == "loaded" or (registered and info.state == "registered")

    def answers(self, name: str) -> bool:
        """Whether it answers requests for an adapter of that name, whatever its content."""
        info = (self.listed or {}).get(name)
        return info is not None and info.state in ("loaded", "registered")


@dataclass(frozen=True, slots=True)
class KnownAdapters:
    """What the status said of adapters when it was written last."""

    pods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By name of the adapter. Those are the operator's: others in an engine's list were loaded by somebody else."""

    @staticmethod
    def of(service: Object) -> KnownAdapters:
        """Those in the status of ``service``."""
        entries = (service.get("status") or {}).get("adapters") or ()
        return KnownAdapters({entry["name"]: tuple(entry.get("pods") or ()) for entry in entries if entry.get("name")})


def find_engines(observed: Observed) -> list[EngineAdapters]:
    """The engine pods that serve adapters or did not say whether they do, by name."""
    return [*_find(sorted(observed.pods, key=lambda pod: str(pod["metadata"]["name"])), observed)]


def _find(pods: Iterable[Object], observed: Observed) -> Iterable[EngineAdapters]:
    for pod in pods:
        if podutil.role(pod) != ROLE_ENGINE or podutil.is_finished(pod):
            continue
        name = pod["metadata"]["name"]
        state, listed = observed.engines.get(name), observed.adapters.get(name)
        if state is not None and not state.max_adapters:
            continue
        leaving = podutil.is_terminating(pod) or bool(podutil.draining_since(pod))
        yield EngineAdapters(
            pod=name,
            target=podutil.is_ready(pod) and not leaving and not (state is not None and state.draining),
            leaving=leaving,
            listed=None if listed is None else {info.name: info for info in listed},
            capacity=state.max_adapters if state is not None else 0,
        )


def same_path(left: str, right: str) -> bool:
    """Whether two paths of adapters are written alike, trailing slashes apart."""
    return left.rstrip("/") == right.rstrip("/")


def engine_path(uri: str) -> str:
    """What an engine reads for the ``uri`` of an adapter."""
    return uri.removeprefix("file://")
