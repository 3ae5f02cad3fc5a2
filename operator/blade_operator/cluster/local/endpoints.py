"""The endpoints controller of the local runtime: a file for each Service lists its ready pods and its draining ones.

Where none is ready, those on standby, too: a router sees sooner than their probes when they can answer.
"""

from __future__ import annotations

import msgspec

from blade_operator.cluster.local import files
from blade_operator.cluster.local.layout import Layout
from blade_operator.cluster.local.pod_status import is_ready, is_terminating
from blade_operator.cluster.local.store import Store
from blade_operator.model.objects import Object
from blade_operator.model.pods import standby_since, woken_at
from blade_protocol.labels import REVISION
from blade_protocol.routing import EndpointConfig, RouterConfig


class Endpoints:
    """Keeps ``NAMESPACE/SERVICE.json`` in the endpoints folder up to date."""

    def __init__(self, layout: Layout, store: Store) -> None:
        self._folder = layout.endpoints
        self._store = store
        self._written: dict[str, bytes] = {}

    def sync(self) -> None:
        """Write the files that changed and remove those without a Service."""
        wanted = {}
        for service in self._store.find("Service"):
            if service["spec"].get("selector"):
                path = f"{service['metadata']['namespace']}/{service['metadata']['name']}.json"
                wanted[path] = msgspec.json.encode(RouterConfig(endpoints=self._endpoints(service)))
        for path, content in wanted.items():
            if self._written.get(path) != content:
                files.write_atomic(self._folder / path, content, durable=False)
        for file in self._folder.glob("*/*.json"):
            if str(file.relative_to(self._folder)) not in wanted:
                file.unlink()
        self._written = wanted

    def _endpoints(self, service: Object) -> tuple[EndpointConfig, ...]:
        pods = self._store.find("Pod", service["metadata"]["namespace"], service["spec"]["selector"])
        found = tuple(_endpoint(pod) for pod in pods if is_ready(pod))
        if any(not each.draining for each in found):
            return found
        unready = (pod for pod in pods if not is_ready(pod) and not is_terminating(pod))
        return found + tuple(_endpoint(pod, starting=True) for pod in unready if standby_since(pod) or woken_at(pod))


def _endpoint(pod: Object, *, starting: bool = False) -> EndpointConfig:
    ports = {
        port.get("name"): port["containerPort"]
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
    }
    host = pod["status"]["podIP"]
    inside = ports.get("internal") or ports.get("admin")
    return EndpointConfig(
        name=pod["metadata"]["name"],
        url=f"http://{host}:{ports.get('http')}",
        internal_url=f"http://{host}:{inside}" if inside else "",
        revision=(pod["metadata"].get("labels") or {}).get(REVISION, ""),
        draining=is_terminating(pod),
        starting=starting,
    )
