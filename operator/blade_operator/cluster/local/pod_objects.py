"""Pod objects of the local runtime: made of the template of their controller, each with ports of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from blade_operator.cluster.local import ports
from blade_operator.cluster.local.events import Events
from blade_operator.cluster.local.fields import port_variable
from blade_operator.cluster.local.scheduler import NODE, containers_of, wanted
from blade_operator.cluster.local.services import Services, pod_ports
from blade_operator.cluster.local.store import Store
from blade_operator.model.objects import Object, Ref


class PodObjects:
    """Creates and deletes the pods of controllers."""

    def __init__(self, store: Store, events: Events, services: Services) -> None:
        self._store = store
        self._events = events
        self._services = services

    def of(self, owner: Object) -> list[Object]:
        """The pods that ``owner`` controls."""
        uid, namespace = owner["metadata"]["uid"], owner["metadata"]["namespace"]
        return [pod for pod in self._store.find("Pod", namespace) if _owner(pod) == uid]

    def delete(self, owner: Object, pod: Object) -> None:
        """Delete a pod of ``owner``."""
        self._store.delete(Ref.of(pod))
        self._record(owner, "Deleted", pod)

    def create(
        self,
        owner: Object,
        labels: Mapping[str, str],
        *,
        name: str = "",
        elsewhere: Mapping[str, int] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Object:
        """Create a pod of ``owner`` with further ``labels``, ports of its own, and the Service's (``hostPort``) where
        it is behind one.

        ``name``: its name; empty for one with a random end. ``elsewhere``: ports of its template, by name, on which
        another pod listens instead. ``variables``: values of environment variables that its template has.
        """
        metadata = owner["metadata"]
        source = copy.deepcopy(owner["spec"]["template"])
        of_template = source.get("metadata", {}).get("labels", {})
        pod: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **({"name": name} if name else {"generateName": f"{metadata['name']}-"}),
                "namespace": metadata["namespace"],
                "labels": {**of_template, **labels},
                "annotations": source.get("metadata", {}).get("annotations", {}),
                "ownerReferences": [
                    {
                        "apiVersion": owner["apiVersion"],
                        "kind": owner["kind"],
                        "name": metadata["name"],
                        "uid": metadata["uid"],
                        "controller": True,
                    }
                ],
            },
            "spec": source["spec"],
        }
        if not wanted(pod):
            pod["spec"]["nodeName"] = NODE
        containers = containers_of(pod)
        chosen = self._choose_ports(pod, containers, elsewhere or {})
        for container in containers:
            for variable, value in {"BLADE_HOST": "127.0.0.1", **chosen, **(variables or {})}.items():
                _set_variable(container, variable, value)
        created = self._store.create(pod)
        self._record(owner, "Created", created)
        return created

    def _choose_ports(self, pod: Object, containers: list[Object], elsewhere: Mapping[str, int]) -> dict[str, str]:
        """Give the ports of ``pod`` their numbers, and return the variables that carry them.

        All containers of a pod share its ports: a download reports its progress where the engine will serve.
        """
        taken = self._services.assigned() | {*elsewhere.values()}
        for other in self._store.find("Pod"):
            taken |= pod_ports(other)
        labels, namespace = pod["metadata"]["labels"], pod["metadata"]["namespace"]
        variables = {port_variable(name): str(number) for name, number in elsewhere.items()}
        for container in containers:
            own = [port for port in container.get("ports", []) if port["name"] not in elsewhere]
            if "ports" in container:
                container["ports"] = own
            for port in own:
                port["containerPort"] = ports.free_port(taken)
                taken.add(port["containerPort"])
                variables[port_variable(port["name"])] = str(port["containerPort"])
                shared = self._services.port_for(labels, namespace, port["name"])
                if shared is not None:
                    port["hostPort"] = shared
        return variables

    def _record(self, owner: Object, reason: str, pod: Object) -> None:
        message = f"{reason} pod: {pod['metadata']['name']}"
        self._events.record(owner, "Normal", reason, message, owner["kind"].lower())


def _owner(pod: Object) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))


def _set_variable(container: Object, name: str, value: str) -> None:
    for entry in container.get("env", []):
        if entry["name"] == name:
            entry["value"] = value
