"""The Service controller of the local runtime: one port of this machine for each Service that is not headless."""

from __future__ import annotations

from blade_operator.cluster.local import ports
from blade_operator.cluster.local.pod_status import is_terminating
from blade_operator.cluster.local.store import Store, matches
from blade_operator.model.objects import Object, Ref


class Services:
    """Assigns ports from ``first`` on, in the order in which Services are created."""

    def __init__(self, store: Store, first: int) -> None:
        self._store = store
        self._first = first

    def sync(self) -> None:
        """Assign a port to every Service without one, in ``status.loadBalancer``."""
        services = [service for service in self._store.find("Service") if service["spec"].get("clusterIP") != "None"]
        taken = {port for service in services if (port := port_of(service)) is not None}
        terminating = {
            port for pod in self._store.find("Pod") if is_terminating(pod) for port in pod_ports(pod, "hostPort")
        }
        for service in services:
            if port_of(service) is None:
                port = ports.first_free(range(self._first, 65_536), taken, terminating)
                taken.add(port)
                ingress = [{"ip": "127.0.0.1", "ports": [{"port": port, "protocol": "TCP"}]}]
                self._store.write_status(Ref.of(service), {"loadBalancer": {"ingress": ingress}})

    def assigned(self) -> set[int]:
        """Ports that are assigned to Services."""
        return {port for service in self._store.find("Service") if (port := port_of(service)) is not None}

    def port_for(self, labels: dict[str, str], namespace: str, name: str) -> int | None:
        """The Service's port that leads to the port ``name`` of pods with ``labels``, if one does."""
        for service in self._store.find("Service", namespace):
            selector = service["spec"].get("selector") or {}
            port = port_of(service)
            if port is None or not selector or not matches({"metadata": {"labels": labels}}, selector):
                continue
            if service["spec"]["ports"][0].get("targetPort") in (name, None):
                return port
        return None


def port_of(service: Object) -> int | None:
    """The port of this machine that is assigned to ``service``, or None."""
    ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or []
    return int(ingress[0]["ports"][0]["port"]) if ingress else None


def pod_ports(pod: Object, field: str = "containerPort") -> set[int]:
    """All ports that the containers of ``pod`` listen on; with ``hostPort`` those of Services among them."""
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]
    return {int(port[field]) for port in ports if field in port}
