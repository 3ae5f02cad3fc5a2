"""The memory that bodies take together, and the time each of them has."""

import asyncio
import contextlib
import gc
import math
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from router_support.engine import MockEngine
from router_support.keys import SECRET, content, key, write
from router_support.raw import BODY, HOST, RawClient, chunked, connected, get, post
from router_support.serving import Running, eventually, serving

from blade_router.arguments import parse_arguments
from blade_router.http import server
from blade_router.http.body_budget import BodyBudget, BodyCharge, largest_body
from blade_router.http.errors import Refused
from blade_router.http.head import RawRequest
from blade_router.http.request_reader import HttpLimits, RequestReader
from blade_router.request.request import ClientRequest, read_fields

MIB = 1 << 20
START = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST


def body_of(size: int) -> bytes:
    return BODY[:-1] + b', "note": "' + b"x" * (size - len(BODY) - 12) + b'"}'


def budget(router: Running) -> BodyBudget:
    return router.server.limits.budget


async def refused(client: RawClient) -> None:
    response = await client.response()
    assert (response.status, response.header("retry-after"), response.header("connection")) == (503, "1", "close")
    assert response.error["code"] == "overloaded"


async def test_a_body_counts_until_its_request_has_ended() -> None:
    gate = asyncio.Semaphore(0)
    async with MockEngine("a", gate=gate) as engine, serving(engine, body_budget_bytes=2 * MIB) as router:
        async with connected(router.port) as first, connected(router.port) as second, connected(router.port) as small:
            first.send(post(body_of(MIB)))
            await eventually(lambda: engine.active == 1)
            assert budget(router).used == MIB
            assert await router.metric("blade_router_body_bytes") == MIB
            second.send(START + b"content-length: %d\r\n\r\n" % MIB)
            await refused(second)  # before any of it is read
            small.send(post())
            await eventually(lambda: engine.active == 2)
            gate.release()
            gate.release()
            assert [(await each.response()).status for each in (first, small)] == [200, 200]
            gate.release()
            small.send(post(body_of(MIB)))
            assert (await small.response()).status == 200
        await eventually(lambda: not budget(router).used)


async def test_what_a_large_body_is_read_from_counts_too() -> None:
    gate = asyncio.Semaphore(0)
    prompt = b'{"model": "mock", "prompt": "' + b"word " * 600_000 + b'"}'
    async with MockEngine("a", gate=gate) as engine, serving(engine, body_budget_bytes=6 * MIB) as router:
        async with connected(router.port) as first, connected(router.port) as second:
            first.send(post(prompt, path=b"/v1/completions"))
            await eventually(lambda: engine.active == 1)
            # the first MiB of it in the JSON that was parsed, and again in the text of the prompt
            assert len(prompt) + 2 * MIB <= budget(router).used <= len(prompt) + 2 * MIB + 4096
            second.send(START + b"content-length: %d\r\n\r\n" % (MIB // 2))
            await refused(second)
            gate.release()
            assert (await first.response()).status == 200
        await eventually(lambda: not budget(router).used)


async def test_bodies_that_leave_no_room_to_be_read_are_refused() -> None:
    large = body_of(5 * MIB // 4)
    async with MockEngine("a") as engine, serving(engine, body_budget_bytes=6 * MIB) as router:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(router.port)) for _ in range(4)]
            for client in clients:
                client.send(post(large))
            statuses = sorted([(await client.response()).status for client in clients])
            assert statuses[0] == 200
            assert set(statuses[1:]) <= {200, 503}
        await eventually(lambda: not budget(router).used)


def test_reading_a_body_takes_no_more_than_there_is_unless_it_is_alone() -> None:
    found = BodyBudget(8 * MIB)
    one = BodyCharge(found, 7 * MIB, "")
    assert one.has_room(3 * MIB), "what may be received can be read"
    other = BodyCharge(found, MIB // 2, "")
    assert one.has_room(3 * MIB), "small ones are not in its way"
    another = BodyCharge(found, MIB, "team-a")
    assert not one.has_room(3 * MIB)
    for each in (one, other, another):
        each.release()
        each.add(MIB)  # too late
    assert (found.used, found._used_by) == (0, {})


@pytest.mark.parametrize("text", [MIB - 100_000, 3 * MIB])
async def test_what_large_bodies_are_read_into_leaves_room_for_small_ones(text: int) -> None:
    """Parsed whole, or abridged; also while none of their prompts has been put together."""
    found = BodyBudget(32 * MIB)
    body = b'{"prompt": "' + b"x" * text + b'"}'
    prompts = []
    for _ in range(40):
        if not found.fits(len(body), len(body)):
            continue
        charge = BodyCharge(found, len(body), "")
        try:
            fields, abridged = await read_fields(body, charge)
        except Refused:
            charge.release()
        else:
            prompts.append(ClientRequest("POST", "/", fields, body, b"", abridged=abridged, charge=charge))
        assert found.used <= found.large_limit
    assert len(prompts) >= 5
    for each in prompts:
        assert len(each.prompt.text) > MIB // 2
    assert found.used <= found.large_limit
    assert found.fits(2000, 2000)
    for each in prompts:
        assert each.charge is not None
        each.charge.release()
    assert found.used == 0


async def test_what_was_expected_of_a_prompt_is_given_back_when_it_is_known() -> None:
    found = BodyBudget(8 * MIB)
    picture = (
        b'[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,%b"}}]}]'
    )
    body = b'{"messages": %b}' % (picture % (b"A" * 500_000))
    charge = BodyCharge(found, len(body), "")
    fields, _ = await read_fields(body, charge)
    assert found.used > 1_000_000
    request = ClientRequest("POST", "/v1/chat/completions", fields, body, b"", charge=charge)
    assert len(request.prompt.text) < 1000
    assert found.used == len(body)
    charge.release()
    assert found.used == 0


def test_reading_a_body_takes_no_more_than_the_share_of_its_key() -> None:
    found = BodyBudget(16 * MIB)
    one, other = BodyCharge(found, 3 * MIB, "team-a"), BodyCharge(found, 3 * MIB, "team-a")
    assert one.has_room(MIB)
    assert not one.has_room(2 * MIB)
    third = BodyCharge(found, MIB, "team-b")
    assert third.has_room(2 * MIB)
    for each in (one, other, third):
        each.release()


async def test_an_idle_connection_keeps_no_body() -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(post(body_of(MIB)))
        assert (await client.response()).status == 200
        (served,) = (each for each in router.server.connections if each._served)
        await eventually(lambda: served.idleness() is not None)
        held = [each for each in gc.get_objects() if isinstance(each, RawRequest) and len(each.body) > MIB // 2]
        assert held == []


async def test_large_bodies_leave_room_for_small_ones() -> None:
    gate = asyncio.Semaphore(0)
    async with MockEngine("a", gate=gate) as engine, serving(engine, body_budget_bytes=MIB) as router:
        async with connected(router.port) as large, connected(router.port) as other, connected(router.port) as small:
            large.send(post(body_of(largest_body(MIB))))
            await eventually(lambda: engine.active == 1)
            other.send(post(body_of(70_000)))
            await refused(other)
            small.send(post(body_of(60_000)))
            await eventually(lambda: engine.active == 2)
        await eventually(lambda: not budget(router).used)


async def test_one_key_leaves_room_for_others(keys_file: Path) -> None:
    write(keys_file, content(key(), key("team-b", "sk-b")))
    gate = asyncio.Semaphore(0)
    size = largest_body(2 * MIB) // 2

    def sent(secret: str, body: bytes) -> bytes:
        return post(body, b"authorization: Bearer " + secret.encode())

    async with MockEngine("a", gate=gate) as engine:
        async with serving(engine, body_budget_bytes=2 * MIB, keys=keys_file) as router:
            async with contextlib.AsyncExitStack() as stack:
                first, second, other, small = [
                    await stack.enter_async_context(connected(router.port)) for _ in range(4)
                ]
                first.send(sent(SECRET, body_of(size)))
                await eventually(lambda: engine.active == 1)
                second.send(sent(SECRET, body_of(70_000)))
                await refused(second)
                small.send(sent(SECRET, body_of(60_000)))
                other.send(sent("sk-b", body_of(size - 70_000)))
                await eventually(lambda: engine.active == 3)
            await eventually(lambda: not budget(router).used)
            assert not budget(router)._used_by, "nothing is kept of keys that use nothing"
            async with connected(router.port) as again:
                again.send(sent(SECRET, body_of(largest_body(2 * MIB))))
                await eventually(lambda: engine.active == 1)  # one body may always come, if there is room for it


async def test_uploads_that_hang_take_what_they_have_sent() -> None:
    async with MockEngine("a") as engine, serving(engine, body_budget_bytes=4 * MIB) as router:
        hanging = [await RawClient.connect(router.port) for _ in range(64)]
        for client in hanging:
            client.send(START + b"content-length: %d\r\n\r\n{" % (3 * MIB))
        await eventually(lambda: sum(each.receiving for each in router.server.connections) == 64)
        assert budget(router).used == 64
        async with connected(router.port) as client:
            client.send(post(body_of(3 * MIB)))
            assert (await client.response()).status == 200
        for client in hanging:
            client.writer.transport.abort()
        await eventually(lambda: not budget(router).used)


async def test_an_upload_that_hangs_gives_way_to_one_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MockEngine("a") as engine, serving(engine, body_budget_bytes=2 * MIB) as router:
        async with connected(router.port) as little, connected(router.port) as much, connected(router.port) as client:
            little.send(START + b"content-length: 900000\r\n\r\n" + b"x" * 100_000)
            much.send(START + b"transfer-encoding: chunked\r\n\r\n100000\r\n" + b"x" * MIB)
            await eventually(lambda: budget(router).used == MIB + 100_000)
            client.send(post(body_of(MIB)))
            await refused(client)  # nothing hangs for long enough yet
            monkeypatch.setattr(server, "STALLED_SECONDS", -1.0)
            await asyncio.sleep(server.UPLOAD_SCAN_SECONDS)
            async with connected(router.port) as again:
                again.send(post(body_of(MIB)))
                assert (await again.response()).status == 200
            await refused(much)
            assert budget(router).used == 100_000


async def test_a_body_of_unknown_length_is_refused_where_it_no_longer_fits() -> None:
    async with MockEngine("a") as engine, serving(engine, body_budget_bytes=MIB) as router:
        async with connected(router.port) as client:
            client.send(START + b"transfer-encoding: chunked\r\n\r\n", *[b"10000\r\n" + b"x" * 65536 + b"\r\n"] * 16)
            await refused(client)
        await eventually(lambda: not budget(router).used)
        async with connected(router.port) as client:
            client.send(chunked(body_of(300_000)))
            assert (await client.response()).status == 200
        assert budget(router).used == 0


async def test_a_key_gets_back_what_its_refused_bodies_took(keys_file: Path) -> None:
    """Also of one that no longer fits when its last piece has come."""
    write(keys_file, content(key()))
    head = START + b"authorization: Bearer " + SECRET.encode() + b"\r\ntransfer-encoding: chunked\r\n\r\n"
    async with MockEngine("a") as engine, serving(engine, body_budget_bytes=MIB, keys=keys_file) as router:
        async with connected(router.port) as client:
            client.send(head, b"30000\r\n" + b"x" * 0x30000 + b"\r\n")
            await eventually(lambda: budget(router).used == 0x30000)
            budget(router).used += MIB * 5 // 8  # of others
            client.send(b"30000\r\n" + b"x" * 0x30000 + b"\r\n0\r\n\r\n")
            await refused(client)
        await eventually(lambda: budget(router).used == MIB * 5 // 8)
        assert not budget(router)._used_by


async def test_large_heads_that_hang_count_too() -> None:
    async with MockEngine("a") as engine, serving(engine, body_budget_bytes=MIB) as router:
        clients = [await RawClient.connect(router.port) for _ in range(20)]
        for client in clients:
            client.send(START + b"x-a: " + b"y" * 60_000)
        await eventually(lambda: budget(router).used > MIB - 70_000)
        assert budget(router).used <= MIB
        for client in clients:
            client.writer.transport.abort()
        await eventually(lambda: not budget(router).used)


@pytest.mark.parametrize("gone", [False, True])
async def test_nothing_stays_counted(gone: bool) -> None:
    large = body_of(200_000)
    gate = asyncio.Semaphore(0)
    async with MockEngine("a", gate=gate) as engine, serving(engine, body_budget_bytes=8 * MIB) as router:
        for sent in (
            START + b"x-a: " + b"y" * 100_000,
            post(large)[:-1],
            chunked(large)[:-5],
            chunked(large)[:-5] + b"garbage",
            post(large) + post(large) + post(large)[:-1],
            post(large) * 3 + b"garbage\r\n\r\n",
            post(large, b"content-encoding: gzip"),
            post(large[:-1]),
            post(large, path=b"/elsewhere"),
            get(b"/live", b"content-length: 5") + b"12345",
        ):
            async with connected(router.port) as client:
                client.send(sent)
                await asyncio.sleep(0.02)
                if not gone:
                    for _ in range(3):
                        gate.release()
                    await asyncio.sleep(0.02)
        for _ in range(10):
            gate.release()  # a client that has sent far ahead is not read, so that it left is noticed late
        await eventually(lambda: not router.server.connections)
        await eventually(lambda: budget(router).used == 0)  # a task ends after its connection
        assert not engine.active


def test_a_budget_with_room_for_no_body_is_refused_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--endpoints", "http://x:1", "--body_budget_bytes", "17000000"])
    assert "19173962" in capsys.readouterr().err
    enough = parse_arguments(["--endpoints", "http://x:1", "--body_budget_bytes", "19173962"])
    assert largest_body(enough.body_budget_bytes) >= enough.max_body_bytes


# time


def reading(clock: list[float], limits: HttpLimits) -> RequestReader:
    loop = cast(asyncio.AbstractEventLoop, SimpleNamespace(time=lambda: clock[0]))
    reader = RequestReader(loop, limits, wake=lambda: None, send_continue=lambda: None)
    reader.feed(START + b"content-length: 100000\r\n\r\n")
    return reader


def test_a_body_has_a_rate_that_it_must_keep() -> None:
    clock = [0.0]
    reader = reading(clock, HttpLimits(body_timeout=30, min_body_rate=1000))
    assert reader.deadline == 30
    for clock[0], size, deadline in ((10.0, 5000, 35.0), (20.0, 1000, 36.0), (21.0, 60_000, 51.0), (50.0, 1, 80.0)):
        reader.feed(b"x" * size)
        assert reader.deadline == pytest.approx(deadline)
    clock[0] = 79.0
    reader.feed(b"x")
    assert reader.deadline == pytest.approx(30 + 66.002)
    clock[0] = 80.0
    reader.feed(b"x")
    clock[0] = 97.0
    assert reader.time_out()
    (refusal,) = reader.waiting
    assert isinstance(refusal, Refused)
    assert refusal.status == 408
    assert "1000 bytes/s" in str(refusal)


def test_a_body_has_an_end() -> None:
    clock = [0.0]
    reader = reading(clock, HttpLimits(body_timeout=30, body_deadline=60))
    for clock[0], deadline in ((20.0, 50), (40.0, 60), (59.0, 60)):
        reader.feed(b"x" * 1000)
        assert reader.deadline == deadline
    reader = reading(clock, HttpLimits(body_timeout=30))
    assert reader.deadline == 89 < math.inf


def test_a_body_in_drops_is_in_the_way_from_its_beginning() -> None:
    """Only where others want its place: by itself it has the time that its minimum rate allows."""
    clock = [0.0]
    reader = reading(clock, HttpLimits())
    for clock[0], size, since in ((0.5, 100, 0.5), (0.9, 100, 0.9), (1.8, 100, 0.0), (1.9, 90_000, 1.9), (2.5, 1, 0.0)):
        reader.feed(b"x" * size)
        assert reader.waited_since == since


async def test_the_wait_for_another_response_is_no_slowness() -> None:
    """Its time begins when the response before it has ended: until then nothing of it may have been read."""
    clock = [0.0]
    reader = reading(clock, HttpLimits(body_timeout=30, body_deadline=60))
    clock[0] = 100.0
    reader.restart_deadline()
    assert reader.deadline == 130
    clock[0] = 125.0
    reader.feed(b"x")
    assert reader.deadline == 155
