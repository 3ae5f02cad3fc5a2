"""The engines' HTTP client against real sockets: answers, silence, nonsense."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from operator_support.local import free_port, local, port_of
from operator_support.objects import deployment, router

from blade_operator.fleet import Fleet, internal_url
from blade_operator.objects import Object


def _pod(port: int, name: str = "odd") -> Object:
    return {
        "metadata": {"name": name, "labels": {"serving.bladellm.io/role": "engine"}},
        "spec": {"containers": [{"ports": [{"name": "internal", "containerPort": port}]}]},
        "status": {"podIP": "127.0.0.1", "containerStatuses": [{"started": True}]},
    }


@contextlib.asynccontextmanager
async def _answering(answer: bytes | None) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await asyncio.sleep(30)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer or b"") + (answer or b""))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_states_come_by_pod_and_an_engine_that_does_not_answer_is_unknown(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime, Fleet(timeout=0.3) as fleet:
        await runtime.apply(deployment(replicas=2), router())
        pods = await runtime.ready_pods(3)
        async with _answering(None) as silent, _answering(b'{"model": 3}') as odd:
            strangers = [_pod(silent, "silent"), _pod(odd, "odd"), _pod(free_port(), "closed")]
            states = await fleet.states([*pods, *strangers])
        engines = [pod["metadata"]["name"] for pod in pods if "engine" in pod["metadata"]["name"]]
        assert sorted(states) == sorted(engines)
        assert {state.model for state in states.values()} == {"fake"}


async def test_drain_reaches_the_engine(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime, Fleet() as fleet:
        await runtime.apply(deployment())
        (pod,) = await runtime.ready_pods(1)
        assert await fleet.drain(pod)
        state = (await fleet.states([pod]))[pod["metadata"]["name"]]
        assert state.draining
        assert not await fleet.drain(_pod(free_port()))


async def test_only_started_engines_have_an_address(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment())
        (pod,) = await runtime.ready_pods(1)
        assert internal_url(pod) == f"http://127.0.0.1:{port_of(pod, 'internal')}"
        pod["status"]["containerStatuses"][0]["started"] = False
        assert internal_url(pod) is None
