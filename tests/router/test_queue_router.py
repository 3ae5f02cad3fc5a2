"""The queue in a whole router: with real connections, whose clients wait, share and leave."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from router_support.engine import MockEngine
from router_support.serving import Running, eventually, question, raw_post, serving

from blade_router.admission.gate import Ticket
from blade_router.admission.waiting import WaitingRooms
from blade_router.client import Client
from blade_router.request import ClientRequest
from blade_router.usage import Usage


class GateWithKeys:
    """Takes the key's name from a header."""

    def __init__(self, rooms: WaitingRooms) -> None:
        self._rooms = rooms

    async def admit(self, request: ClientRequest, client: Client) -> Ticket:
        ticket = TicketWithPlace()
        key = request.header(b"x-key").decode()
        ticket.place = await self._rooms.queue().enter(key, 1.0, 0, len(request.body), 100, client, False)
        return ticket

    async def hold(self, request: ClientRequest, client: Client, ticket: Ticket) -> bool:
        return await self._rooms.hold(request, client, ticket)


class TicketWithPlace(Ticket):
    def close(self, usage: Usage | None) -> None:
        if self.place is not None:
            self.place.leave()


def config(folder: Path, **queue: Any) -> Path:
    path = folder / "router.json"
    path.write_text(json.dumps({"queue": queue}))
    return path


async def test_two_keys_share_real_engines(tmp_path: Path) -> None:
    permits = asyncio.Semaphore(0)
    served: Counter[str] = Counter()

    async def client(router: Running, key: str) -> None:
        while True:
            answer = await router.chat(headers={"x-key": key})
            assert answer.status_code == 200
            served[key] += 1

    path = config(tmp_path, endpoint_requests=2)
    async with MockEngine("a", gate=permits) as a, MockEngine("b", gate=permits) as b:
        async with serving(a, b, config=path) as router:
            router.router.proxy.gate = GateWithKeys(router.router.rooms)
            clients = [asyncio.create_task(client(router, key)) for key in ["light"] * 4 + ["heavy"] * 40]
            queue = router.router.rooms.queue()
            for ended in range(200):  # none before all have come back
                await eventually(lambda: queue.state().requests == 40 and a.active + b.active == 4)
                permits.release()
                await eventually(lambda ended=ended: served.total() > ended)  # type: ignore[misc]
            for each in clients:
                each.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
    assert 0.45 <= served["light"] / served.total() <= 0.55, served


async def test_queue_is_bounded_for_clients(tmp_path: Path) -> None:
    permits = asyncio.Semaphore(0)
    async with MockEngine("a", gate=permits) as a:
        async with serving(a, config=config(tmp_path, endpoint_requests=1, max_requests=1)) as router:
            first = asyncio.create_task(router.chat())
            await eventually(lambda: a.active == 1)
            second = asyncio.create_task(router.chat())
            await eventually(lambda: router.router.rooms.queue().state().requests == 1)
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
            queue = router.router.rooms.queue()
            asked = [asyncio.create_task(router.chat())]
            await eventually(lambda: a.active == 1)
            for waiting, extra in enumerate(({"max_tokens": 10**320}, {"n": 10**320}, {}), start=1):
                asking = router.client.post("/v1/chat/completions", json=question() | extra)
                asked.append(asyncio.create_task(asking))
                await eventually(lambda waiting=waiting: queue.state().requests == waiting)  # type: ignore[misc]
            for _ in asked:
                permits.release()
            assert [(await each).status_code for each in asked] == [200] * 4


async def test_disconnect_in_the_queue_reaches_no_engine(tmp_path: Path) -> None:
    permits = asyncio.Semaphore(0)
    async with MockEngine("a", gate=permits) as a:
        async with serving(a, config=config(tmp_path, endpoint_requests=1)) as router:
            _, first = await raw_post(router.port, question())
            await eventually(lambda: a.active == 1)
            _, second = await raw_post(router.port, question())
            queue = router.router.rooms.queue()
            await eventually(lambda: queue.state().requests == 1)
            second.close()
            await eventually(lambda: queue.state().requests == 0)
            first.close()
            await eventually(lambda: queue.state().running == 0)
            assert len(a.received) == 1
