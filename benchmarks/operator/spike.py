"""What watching costs: three ways to watch 1,000 LLMServices and 5,000 of their children, side by side.

The decision is in ``docs/decisions/0006-watching-kubernetes.md``. Needs a cluster with the
CRD and a namespace of its own (``KUBECONFIG``, ``SPIKE_NAMESPACE``):

    python -m benchmarks.operator.spike fill       # make the objects
    python -m benchmarks.operator.spike dynamic    # or: kopf, trimmed; each prints memory, CPU and events
    python -m benchmarks.operator.spike clean      # delete them
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from typing import Any

from kubernetes.aio import client, config

from blade_operator.cluster.kubernetes.api import load_configuration
from blade_operator.cluster.kubernetes.informer_cache import InformerCache
from blade_operator.cluster.kubernetes.kinds import KINDS as WATCHED_KINDS
from blade_operator.cluster.kubernetes.watching.event_source import EventSource
from blade_operator.cluster.kubernetes.watching.scopes import Scope
from blade_operator.model.objects import Object, Ref

NAMESPACE = os.environ.get("SPIKE_NAMESPACE", "spike")
SERVICES = 1000
CONFIG_MAPS = 4
"""Per service, besides one Deployment."""
SELECTOR = "app.kubernetes.io/managed-by=bladellm"
KINDS = {
    "LLMService": "apis/serving.bladellm.io/v1alpha1",
    "Deployment": "apis/apps/v1",
    "ConfigMap": "api/v1",
}


async def connect() -> client.ApiClient:
    await config.load_kube_config()
    configuration = client.Configuration.get_default_copy()
    configuration.connection_pool_maxsize = 50
    return client.ApiClient(configuration)


def path(kind: str, name: str = "") -> str:
    return f"/{KINDS[kind]}/namespaces/{NAMESPACE}/{kind.lower()}s{'/' if name else ''}{name}"


async def send(api: client.ApiClient, method: str, where: str, body: Any = None, kind: str = "application/json") -> Any:
    headers = {"Content-Type": kind, "Accept": "application/json"}
    return await api.rest_client.request(method, api.configuration.host + where, headers, body)


def objects(index: int) -> list[dict[str, Any]]:
    labels = {"app.kubernetes.io/managed-by": "bladellm", "serving.bladellm.io/name": f"s{index}"}
    container = {"name": "engine", "image": "none", "args": [f"--flag_{n}={n}" for n in range(60)]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    made: list[dict[str, Any]] = [
        {"apiVersion": "serving.bladellm.io/v1alpha1", "kind": "LLMService", "spec": {"model": {"uri": "file:///m"}}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec},
        *({"apiVersion": "v1", "kind": "ConfigMap", "data": {"text": "x" * 1500}} for _ in range(CONFIG_MAPS)),
    ]
    return [each | {"metadata": {"name": f"s{index}-{n}", "labels": labels}} for n, each in enumerate(made)]


async def fill() -> None:
    async with await connect() as api:
        todo = [obj for index in range(SERVICES) for obj in objects(index)]

        async def work() -> None:
            while todo:
                obj = todo.pop()
                response = await send(api, "POST", path(obj["kind"]), obj)
                assert response.status in (201, 409), await response.read()

        await asyncio.gather(*(work() for _ in range(8)))


async def clean() -> None:
    async with await connect() as api:
        for kind in KINDS:
            await (await send(api, "DELETE", path(kind), {"propagationPolicy": "Background"})).read()


async def churn() -> None:
    """One status write for every LLMService: 1,000 events, as a rollout of everything makes them."""
    async with await connect() as api:
        for index in range(SERVICES):
            status = {"status": {"phase": "Ready", "url": f"http://{time.time()}"}}
            where = path("LLMService", f"s{index}-0") + "/status"
            await (await send(api, "PATCH", where, status, "application/merge-patch+json")).read()


class Meter:
    """Memory after the lists have come, CPU and number of the events that follow."""

    def __init__(self, name: str) -> None:
        self.name, self.events, self.objects = name, 0, 0

    async def run(self, task: asyncio.Task[Any]) -> None:
        started = time.process_time()
        last = -1
        while last != self.objects or not last:
            last = self.objects
            await asyncio.sleep(3)
        listing = time.process_time() - started
        gc.collect()
        resident = memory("VmRSS")
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.operator.spike", "churn")
        before, first = time.process_time(), self.events
        await process.wait()
        await asyncio.sleep(2)
        cpu = time.process_time() - before
        print(
            f"{self.name:8} {self.objects} objects  rss {resident} MB (peak {memory('VmHWM')})  "
            f"list {listing:.2f} s CPU  {self.events - first} events {cpu:.2f} s CPU  rss {memory('VmRSS')} MB"
        )
        if task.done():
            task.result()  # raises what ended it
        task.cancel()


def memory(field: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(field))


async def dynamic() -> None:
    from kubernetes.aio.dynamic import DynamicClient

    meter, kept = Meter("dynamic"), {}
    async with await connect() as api:
        dynamic_client = await DynamicClient(api)

        async def follow(kind: str) -> None:
            version = KINDS[kind].removeprefix("apis/").removeprefix("api/")
            resource = await dynamic_client.resources.get(api_version=version, kind=kind)
            listed = await resource.get(namespace=NAMESPACE, label_selector=SELECTOR)
            for item in listed.items:
                kept[kind, item.metadata.name] = item
                meter.objects += 1
            since = listed.metadata.resourceVersion
            async for event in dynamic_client.watch(
                resource, namespace=NAMESPACE, label_selector=SELECTOR, resource_version=since
            ):
                kept[kind, event["object"].metadata.name] = event["object"]
                meter.events += 1

        await meter.run(asyncio.ensure_future(asyncio.gather(*map(follow, KINDS))))


async def kopf_events() -> None:
    """What the operator does: kopf's events go into the informer cache."""
    meter, cache = Meter("kopf"), InformerCache()
    scopes = [Scope(WATCHED_KINDS[kind], NAMESPACE) for kind in KINDS]

    put = cache.put

    def receive(obj: Object) -> None:
        if cache.get(Ref.of(obj)) is None:
            meter.objects += 1
        else:
            meter.events += 1
        put(obj)

    cache.put = receive  # type: ignore[method-assign]
    source = EventSource(await load_configuration(None), cache, lambda scope: None)
    await meter.run(asyncio.create_task(source.run(scopes, [NAMESPACE])))


async def trimmed() -> None:
    import msgspec

    meter, kept = Meter("trimmed"), {}

    def keep(kind: str, obj: dict[str, Any]) -> None:
        metadata = obj["metadata"]
        metadata.pop("managedFields", None)
        if kind != "LLMService":
            obj.pop("status", None)
        kept[kind, metadata["name"]] = msgspec.msgpack.encode(obj)

    async with await connect() as api:

        async def follow(kind: str) -> None:
            base, more = f"{path(kind)}?labelSelector={SELECTOR}", ""
            while True:
                page = msgspec.json.decode(await (await send(api, "GET", f"{base}&limit=500{more}")).read())
                for item in page["items"]:
                    keep(kind, item)
                    meter.objects += 1
                if not page["metadata"].get("continue"):
                    break
                more = f"&continue={page['metadata']['continue']}"
            since = page["metadata"]["resourceVersion"]
            response = await send(api, "GET", f"{base}&watch=true&allowWatchBookmarks=true&resourceVersion={since}")
            async for line in response.response.content:
                event = msgspec.json.decode(line)
                if event["type"] != "BOOKMARK":
                    keep(kind, event["object"])
                    meter.events += 1

        await meter.run(asyncio.ensure_future(asyncio.gather(*map(follow, KINDS))))


if __name__ == "__main__":
    modes = {"fill": fill, "clean": clean, "churn": churn, "dynamic": dynamic, "kopf": kopf_events, "trimmed": trimmed}
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(modes[sys.argv[1]]())
