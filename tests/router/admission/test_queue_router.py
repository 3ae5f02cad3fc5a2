"""The queue in a whole router: with real connections, whose clients wait, share and leave."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from router_support.engine import MockEngine
from router_support.fairness import enter
from router_support.serving import Running, eventually, question, raw_post, serving

from blade_protocol.routing import EndpointConfig, ModelConfig, QueueConfig, RouterConfig
from blade_router.admission.interface import Admission
from blade_router.admission.request_queues import RequestQueues
from blade_router.http.client import Client
from blade_router.request.request import ClientRequest
from blade_router.request.usage import Usage


class AdmissionByKey:
    """Takes the key's name from a header."""

    def __init__(self, request_queues: RequestQueues) -> None:
        self._request_queues = request_queues

    async def admit(self, request: ClientRequest, client: Client) -> Admission:
        admission = AdmissionWithPlace()
        key = request.header(b"x-key").decode()
        queue = self._request_queues.queue()
        admission.queued = await enter(queue, key, 1.0, 0, len(request.body), 100, client, streams=False)
        return admission

    async def wait_for_endpoint(self, request: ClientRequest, client: Client, admission: Admission) -> bool:
        return await self._request_queues.wait_for_endpoint(request, client, admission)


class AdmissionWithPlace(Admission):
    def close(self, usage: Usage | None) -> None:
        if self.queued is not None:
            self.queued.release()


def config(folder: Path, **queue: Any) -> Path:
    path = folder / "router.json"
    path.write_text(json.dumps({"queue": queue}))
    return path


@pytest.mark.interpreted
async def test_two_keys_share_real_engines(tmp_path: Path) -> None:
    permits = asyncio.Semaphore(0)
    served: Counter[str] = Counter()

    async def client(router: Running, key: str) -> None:
        while True:
            response = await router.chat(headers={"x-key": key})
            assert response.status_code == 200
            served[key] += 1

    path = config(tmp_path, endpoint_requests=2)
    async with MockEngine("a", gate=permits) as a, MockEngine("b", gate=permits) as b:
        async with serving(a, b, config=path) as router:
            router.router.proxy.admission_control = AdmissionByKey(router.router.request_queues)
            clients = [asyncio.create_task(client(router, key)) for key in ["light"] * 4 + ["heavy"] * 40]
            queue = router.router.request_queues.queue()
            for ended in range(200):  # none before all have come back
                await eventually(lambda: queue.state().requests == 40 and a.active + b.active == 4)
                permits.release()
                await eventually(lambda ended=ended: served.total() > ended)  # type: ignore[misc]
            for each in clients:
                each.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
    assert 0.45 <= served["light"] / served.total() <= 0.55, served


async def test_who_waits_for_a_service_that_lost_its_engines_hears_of_it_at_once() -> None:
    queue = QueueConfig(endpoint_requests=1)
    async with MockEngine("a", gate=asyncio.Semaphore(0)) as a, MockEngine("b") as b, serving(wait=False) as router:
        others = EndpointConfig(url=b.url, name="b", service="other")
        mine = EndpointConfig(url=a.url, name="a", service="mine")
        models = (ModelConfig(name="mock", service="mine"),)
        router.router.apply(RouterConfig(endpoints=(mine, others), queue=queue, models=models))
        await eventually(lambda: router.router.endpoints.usable_count() == 2)
        chats = [asyncio.create_task(router.chat()) for _ in range(3)]
        await eventually(lambda: router.router.request_queues.queue("mine").state().requests == 2)
        router.router.apply(RouterConfig(endpoints=(others,), queue=queue, models=models))
        for each in chats[1:]:
            response = await each
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.json()["error"]["code"] == "no_endpoint"
            assert "no engine of this service is registered" in response.json()["error"]["message"]
        chats[0].cancel()


async def test_queue_is_bounded_for_clients(tmp_path: Path) -> None:
    permits = asyncio.Semaphore(0)
    async with MockEngine("a", gate=permits) as a:
        async with serving(a, config=config(tmp_path, endpoint_requests=1, max_requests=1)) as router:
            first = asyncio.create_task(router.chat())
            await eventually(lambda: a.active == 1)
            second = asyncio.create_task(router.chat())
            await eventually(lambda: router.router.request_queues.queue().state().requests == 1)
            refused = await router.chat()
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "queue_full"
            for _ in range(2):
                permits.release()
            assert [(await first).status_code, (await second).status_code] == [200, 200]
            assert await router.metric("blade_router_queue_duration_seconds_count") == 1


async def test_absurd_numbers_leave_the_queue_as_it_is(tmp_path: Path) -> None:
    permits = asyncio.Semaphore(0)
    async with MockEngine("a", gate=permits) as a:
        async with serving(a, config=config(tmp_path, endpoint_requests=1)) as router:
            queue = router.router.request_queues.queue()
            pending = [asyncio.create_task(router.chat())]
            await eventually(lambda: a.active == 1)
            for waiting, extra in enumerate(({"max_tokens": 10**320}, {"n": 10**320}, {}), start=1):
                posted = router.client.post("/v1/chat/completions", json=question() | extra)
                pending.append(asyncio.create_task(posted))
                await eventually(lambda waiting=waiting: queue.state().requests == waiting)  # type: ignore[misc]
            for _ in pending:
                permits.release()
            assert [(await each).status_code for each in pending] == [200] * 4


async def test_disconnect_in_the_queue_reaches_no_engine(tmp_path: Path) -> None:
    permits = asyncio.Semaphore(0)
    async with MockEngine("a", gate=permits) as a:
        async with serving(a, config=config(tmp_path, endpoint_requests=1)) as router:
            _, first = await raw_post(router.port, question())
            await eventually(lambda: a.active == 1)
            _, second = await raw_post(router.port, question())
            queue = router.router.request_queues.queue()
            await eventually(lambda: queue.state().requests == 1)
            second.close()
            await eventually(lambda: queue.state().requests == 0)
            first.close()
            await eventually(lambda: queue.state().running == 0)
            assert len(a.received) == 1
