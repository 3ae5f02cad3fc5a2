"""Several processes behind one port: they serve together, replace each other, and count together."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from router_support.engine import MockEngine
from router_support.keys import SECRET, content, key, write
from router_support.program import ports_of
from router_support.raw import BODY, Response, connected, get, post
from router_support.serving import TEST_SECONDS, eventually, question

from blade_protocol import paths
from blade_protocol.signals import RouterSignals
from blade_router.admin.sibling_workers import merge_metrics
from blade_router.admission.demand import MAX_WAITERS
from blade_router.app import main
from blade_router.workers.supervisor import SHARED_BYTES, VARIABLE, Worker


@asynccontextmanager
async def running(
    *flags: str, pass_fds: tuple[int, ...] = (), **environment: str
) -> AsyncIterator[tuple[Process, int, int]]:
    """A router of two workers that both serve, its port and its admin port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "blade_router.app", "--port", "0", "--workers", "2", *flags),
        stderr=PIPE,
        env=os.environ | environment,
        pass_fds=pass_fds,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(TEST_SECONDS):
            port, admin = await ports_of(process.stderr)
            draining = asyncio.create_task(process.stderr.read())
            while len(await workers(admin)) < 2:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
            yield process, port, admin
            draining.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def workers(admin: int) -> dict[int, int]:
    """Pid of each worker."""
    return {each["worker"]: each["pid"] for each in (await status(admin))["workers"]}


async def status(admin: int) -> dict[str, Any]:
    async with connected(admin) as client:
        client.send(get(b"/status"))
        found: dict[str, Any] = json.loads((await client.response()).body)
    return found


async def metric(admin: int, name: str) -> float:
    async with connected(admin) as client:
        client.send(get(b"/metrics"))
        text = (await client.response()).body.decode()
    return next((float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)


async def send_chats(port: int, times: int) -> None:
    """Send each chat on a connection of its own, which the kernel gives to one of the workers."""
    for _ in range(times):
        async with connected(port) as client:
            client.send(post())
            assert (await client.response()).status == 200


async def test_both_serve_and_count_together() -> None:
    async with MockEngine("a") as engine, running("--endpoints", engine.url) as (process, port, admin):
        assert process.pid not in (await workers(admin)).values(), "the parent serves nothing"
        await send_chats(port, 40)
        assert await metric(admin, 'blade_router_requests_total{code="200"}') == 40
        assert await metric(admin, "blade_router_request_duration_seconds_count") == 40
        assert await metric(admin, f'blade_router_endpoint_up{{endpoint="{engine.url}"}}') == 1
        responding = {(await status(admin))["worker"] for _ in range(40)}
        assert responding == {0, 1}


async def test_signals_are_of_both() -> None:
    async with MockEngine("a") as engine, running("--endpoints", engine.url) as (_, port, admin):
        await send_chats(port, 20)
        async with connected(admin) as client:
            client.send(get(b"/internal/signals"))
            signals = msgspec.json.decode((await client.response()).body, type=RouterSignals)
        assert (signals.arrivals, signals.finished, signals.completion_tokens) == (20, 20, 20)
        assert [(service.endpoints, service.usable) for service in signals.services] == [(1, 1)]


async def test_health_that_one_worker_detects_is_shared_with_the_other() -> None:
    """Their own checks come once a minute: the other one can only know it by shared health."""
    async with MockEngine("a") as a, MockEngine("b") as b:
        flags = ("--endpoints", f"{a.url},{b.url}", "--health_interval", "60")
        async with running(*flags) as (_, port, admin):
            while not all(each["up"] for each in (await status(admin))["endpoints"]):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
            b.mode = "draining"
            while not b.received:
                await send_chats(port, 1)
            knows: set[int] = set()
            while len(knows) < 2:
                found = await status(admin)
                if found["endpoints"][1]["draining"]:
                    knows.add(found["worker"])
            received = len(b.received)
            await send_chats(port, 20)
            assert len(b.received) == received <= 2


async def test_a_worker_that_is_killed_is_replaced_and_nobody_is_refused() -> None:
    async with MockEngine("a") as engine, running("--endpoints", engine.url) as (process, port, admin):
        before = await workers(admin)
        os.kill(before[1], signal.SIGKILL)
        await send_chats(port, 30)  # half of these connect to the socket of the worker that is being replaced
        after = await workers(admin)
        assert after[0] == before[0]
        assert after[1] != before[1]
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        for pid in after.values():
            assert not psutil.pid_exists(pid)


def keys(folder: Path, **limits: int) -> str:
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": [{"name": "a", "key": "sk-a", **limits}]}))
    return str(path)


async def request_with_key_a(port: int, **body: Any) -> Response:
    async with connected(port) as client:
        client.send(post(json.dumps(question(stream=True) | body).encode(), b"x-api-key: sk-a"))
        return await client.response()


async def test_workers_honour_one_token_limit(tmp_path: Path) -> None:
    """Many clients at once, each on connections of its own, until both workers refuse."""
    limit, tokens = 60_000, 300
    file = keys(tmp_path, tokens_per_minute=limit)
    async with (
        MockEngine("a", tokens=tokens) as engine,
        running("--endpoints", engine.url, "--keys", file) as (_, port, _),
    ):
        first = await request_with_key_a(port, max_tokens=tokens)
        each = limit - int(first.header("x-ratelimit-remaining-tokens") or "0")
        assert tokens < each < 1.2 * tokens
        passed = 1

        async def load() -> None:
            nonlocal passed
            refused = 0
            while refused < 4:
                response = await request_with_key_a(port, max_tokens=tokens)
                assert response.status in (200, 429)
                passed += response.status == 200
                refused = refused + 1 if response.status == 429 else 0

        await asyncio.gather(*(load() for _ in range(8)))
        assert 0.95 * limit <= passed * each <= 1.05 * limit


async def test_what_a_dead_worker_had_under_way_is_not_counted(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)
    flags = ("--keys", keys(tmp_path, concurrent=2))
    async with MockEngine("a", gate=gate) as engine, running("--endpoints", engine.url, *flags) as (_, port, admin):
        held = [asyncio.create_task(request_with_key_a(port)) for _ in range(2)]
        await eventually(lambda: engine.active == 2)
        assert (await request_with_key_a(port)).status == 429
        before = await workers(admin)
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*held, return_exceptions=True)
        await eventually(lambda: engine.active == 0)
        await replaced(admin, set(before.values()))  # what a worker had counts until its parent has seen it die
        gate.release()
        for _ in range(engine.tokens):
            gate.release()
        assert (await request_with_key_a(port)).status == 200


async def replaced(admin: int, dead: set[int]) -> None:
    """Wait until as many other workers are there."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(OSError, EOFError):  # there is none yet
                now = set((await workers(admin)).values())
                if len(now) == len(dead) and not now & dead:
                    return
            await asyncio.sleep(0.02)


async def test_a_stop_reaches_the_workers_and_streams_finish() -> None:
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate) as engine, running("--endpoints", engine.url) as (process, port, _):
        async with connected(port) as client:
            client.send(post(json.dumps(question(stream=True)).encode()))
            await client.reader.readuntil(engine.event(0))
            process.send_signal(signal.SIGINT)
            await eventually(lambda: not accepts(port))
            gate.release()
            gate.release()
            assert (await client.reader.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert await process.wait() == 0


async def test_workers_end_with_their_parent() -> None:
    async with MockEngine("a") as engine, running("--endpoints", engine.url) as (process, _, admin):
        pids = (await workers(admin)).values()
        process.kill()
        await process.wait()
        await eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))


async def test_an_inherited_socket_is_accepted_from_by_all() -> None:
    with socket.create_server(("127.0.0.1", 0)) as shared:
        number, port = shared.fileno(), shared.getsockname()[1]
        async with MockEngine("a") as engine:
            inherits = running("--endpoints", engine.url, pass_fds=(number,), BLADE_LISTEN_FD=str(number))
            async with inherits as (_, _, admin):
                await send_chats(port, 5)
                assert len(await workers(admin)) == 2


async def test_workers_share_memory_that_only_they_can_reach() -> None:
    async with MockEngine("a") as engine, running("--endpoints", engine.url) as (_, _, admin):
        given = []
        for pid in (await workers(admin)).values():
            worker = Worker.decode(psutil.Process(pid).environ()[VARIABLE])
            given.append(os.stat(f"/proc/{pid}/fd/{worker.shared}"))
            assert worker.folder.stat().st_mode & 0o077 == 0
        assert given[0].st_ino == given[1].st_ino
        assert given[0].st_size == SHARED_BYTES


async def test_a_mistake_in_the_configuration_ends_them_all(tmp_path: Path) -> None:
    (tmp_path / "router.json").write_text('{"policies": 1}')
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "blade_router.app", "--port", "0", "--workers", "2"),
        *("--config", str(tmp_path / "router.json")),
        stderr=PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"unknown field `policies`" in errors


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(SystemExit) as caught:
            main(["--port", port, "--workers", "2", "--endpoints", "http://127.0.0.1:1"])
    assert str(caught.value.code).endswith("Address already in use; choose another --port")


def test_metrics_of_several_are_added_up() -> None:
    text = (
        "# HELP a_total Things.\n# TYPE a_total counter\n"
        'a_total{{code="{code}"}} {count}\n'
        "# HELP d Seconds.\n# TYPE d histogram\n"
        'd_bucket{{le="1"}} {count}\nd_bucket{{le="+Inf"}} {count}\nd_count {count}\nd_sum 0.5\n'
        '# HELP e_up Up.\n# TYPE e_up gauge\ne_up{{endpoint="x y"}} 1.0\n'
        "# HELP busy Busy.\n# TYPE busy gauge\nbusy {count}\n"
    )
    both = merge_metrics([text.format(code=200, count=2).encode(), text.format(code=429, count=3).encode()]).decode()
    assert both.splitlines() == [
        "# HELP a_total Things.",
        "# TYPE a_total counter",
        'a_total{code="200"} 2.0',
        'a_total{code="429"} 3.0',
        "# HELP d Seconds.",
        "# TYPE d histogram",
        'd_bucket{le="1"} 5.0',
        'd_bucket{le="+Inf"} 5.0',
        "d_count 5.0",
        "d_sum 1.0",
        "# HELP e_up Up.",
        "# TYPE e_up gauge",
        'e_up{endpoint="x y"} 1.0',
        "# HELP busy Busy.",
        "# TYPE busy gauge",
        "busy 5.0",
    ]


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_malformed_lines_of_one_worker_affect_no_other() -> None:
    text = '# TYPE a_total counter\na_total{model="x\u2028y\x85z"} 1\n'
    odd = "#\nnonsense\na_total oops\n\udcff 1\n"
    both = merge_metrics([text.encode(), odd.encode(errors="surrogateescape"), text.encode()]).decode()
    assert 'a_total{model="x\u2028y\x85z"} 2.0\n' in both
    assert "oops" not in both


async def test_replicas_lend_each_other_shares_of_limits_through_their_first_workers(tmp_path: Path) -> None:
    """Whichever worker a request comes to, and whichever a message of the other replica."""
    peers, keys = tmp_path / "my-router.json", tmp_path / "keys.json"
    write(peers, json.dumps({"endpoints": [{"url": f"http://127.0.0.1:{port}"} for port in (1, 2)]}))
    write(keys, content(key(requests_per_minute=12)))
    async with MockEngine("a") as engine:
        flags = ("--endpoints", engine.url, "--keys", str(keys), "--peers", "my-router")
        environment = {"BLADE_ENDPOINTS_DIR": str(tmp_path)}
        async with running(*flags, **environment) as (_, *one), running(*flags, **environment) as (_, *other):
            ports = (one[0], other[0])
            urls = [
                {"url": f"http://127.0.0.1:{port}", "internal_url": f"http://127.0.0.1:{admin}"}
                for port, admin in (one, other)
            ]
            write(peers, json.dumps({"endpoints": urls}))
            passed = 0
            while passed < 12:  # none is lent before they have heard from each other
                passed += await passes(ports[0])
            assert [await passes(ports[number % 2]) for number in range(20)] == [False] * 20


async def passes(port: int) -> bool:
    """Whether a request with the key passes, on a connection of its own."""
    async with connected(port) as client:
        client.send(post(BODY, b"authorization: Bearer %b" % SECRET.encode()))
        status = (await client.response()).status
    assert status in (200, 429)
    return status == 200


async def test_who_waits_for_demand_at_one_worker_learns_what_another_one_holds(tmp_path: Path) -> None:
    config = tmp_path / "router.json"
    config.write_text(json.dumps({"hold": {"max_requests": 4}}))
    path = f"{paths.INTERNAL_SIGNALS}?wait_for=demand&timeout=60".encode()
    async with running("--config", str(config)) as (_, port, admin), contextlib.AsyncExitStack() as stack:
        # Some at either worker, and at none more than may wait there.
        waits = [await stack.enter_async_context(connected(admin)) for _ in range(MAX_WAITERS)]
        for client in waits:
            client.send(get(path))
        holding = await stack.enter_async_context(connected(port))
        holding.send(post())
        for client in waits:
            response = await client.response()
            found = msgspec.json.decode(response.body, type=RouterSignals)
            assert (response.status, sum(each.held_requests for each in found.services)) == (200, 1)
