"""How many connections there may be, which one makes room, and what happens when descriptors run out."""

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from router_support.engine import MockEngine
from router_support.raw import BODY, connected, get, post
from router_support.serving import Running, eventually, serving

from blade_router.arguments import parse_arguments
from blade_router.endpoints.endpoint_health import EndpointHealth
from blade_router.http.accept import connection_table
from blade_router.http.accept.connection_table import RESERVE, ConnectionTable, Idleness, Rank
from blade_router.http.accept.descriptors import RESERVED, connections_for
from blade_router.http.accept.trusted_proxies import TrustedProxies
from blade_router.http.request_reader import Stage
from blade_router.http.upstream.errors import connect_failed
from blade_router.http.upstream.pool import ConnectionPool

START = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


@contextlib.contextmanager
def no_descriptors() -> Iterator[Callable[[], None]]:
    """Nothing can be opened in this process. What it yields takes the descriptors that have been closed since."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    taken: list[int] = []

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))

    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield take
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in taken:
            os.close(number)


async def connect(sock: socket.socket, port: int, sent: bytes = b"") -> None:
    """Connect a socket that exists already."""
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, sent)


async def everything_from(sock: socket.socket) -> bytes:
    loop, received = asyncio.get_running_loop(), b""
    while data := await loop.sock_recv(sock, 65536):
        received += data
    return received


# descriptors


async def test_connecting_without_descriptors_is_no_engines_fault() -> None:
    async with MockEngine("a") as a, MockEngine("b") as b:
        async with serving(a, b, health_interval=0.05) as router, connected(router.port) as client:
            checks = a.probes + b.probes
            with no_descriptors() as take:
                for _ in range(3):  # health checks that are under way end
                    await asyncio.sleep(0.05)
                    take()
                for _ in range(4):
                    client.send(post())
                    response = await client.response()
                    assert (response.status, response.header("retry-after")) == (503, "1")
                    assert response.error["code"] == "overloaded"
                await asyncio.sleep(0.2)  # health checks fail meanwhile
                assert router.router.endpoints.usable_count() == 2
                assert [each.health.failures for each in router.router.endpoints.all] == [0, 0]
            await eventually(lambda: a.probes + b.probes > checks)
            client.send(post())
            assert (await client.response()).status == 200
            assert "blade_router_retries_exhausted_total 0" in (await router.admin.get("/metrics")).text


async def test_idle_connections_to_engines_give_their_descriptors_to_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        async with MockEngine("a") as engine:
            idle = ConnectionPool("127.0.0.1", engine.port)
            idle.release(await idle.exchange(get(), b"", lambda connection: None))
            pool = ConnectionPool("127.0.0.1", other.getsockname()[1])
            with no_descriptors():
                pool.discard(await pool.connect())


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS])
def test_errors_about_this_machine_count_for_no_endpoint(code: int) -> None:
    health = EndpointHealth("a")
    health.mark_up()
    for _ in range(10):
        health.record_failure("exhausted", connect_failed("exhausted", code))
    assert (health.up, health.failures, health.ejected_until) == (True, 0, 0.0)
    health.record_failure("refused", connect_failed("refused", errno.ECONNREFUSED))
    assert health.up is False


async def test_accepting_goes_on_when_there_are_descriptors_again(caplog: pytest.LogCaptureFixture) -> None:
    async with MockEngine("a") as engine, serving(engine, health_interval=60) as router:
        with contextlib.ExitStack() as stack:
            probes = [stack.enter_context(socket.socket()) for _ in range(5)]
            silent = [stack.enter_context(socket.socket()) for _ in range(5)]
            with no_descriptors() as take:
                await asyncio.sleep(0.05)  # what earlier tests left is closed
                take()
                for sock in probes:
                    await connect(sock, router.port, get(b"/live"))
                for sock in probes:  # one after the other, each on the descriptor that was kept back
                    assert b" 200 OK" in await everything_from(sock)
                for sock in silent:
                    await connect(sock, router.port)
                await asyncio.sleep(0.2)
            for sock in silent:
                await asyncio.get_running_loop().sock_sendall(sock, get(b"/live", b"connection: close"))
            for sock in silent:
                assert b" 200 OK" in await everything_from(sock)
        assert len([each for each in caplog.records if "no connection can be accepted" in each.message]) == 1
        assert (await router.chat()).status_code == 200


# limits


async def test_idle_connections_make_room_for_new_ones() -> None:
    async with MockEngine("a") as engine, serving(engine, max_connections=4, max_connections_per_address=0) as router:
        async with connected(router.port) as used, connected(router.port) as silent, connected(router.port) as busy:
            used.send(get(b"/live"))
            await used.response()
            engine.gate = gate = asyncio.Semaphore(0)
            busy.send(post())
            await eventually(lambda: engine.active == 1)
            async with connected(router.port) as third:  # with the HTTP client's own connection there are too many
                third.send(get(b"/live"))
                assert (await third.response()).status == 200
                async with connected(router.port) as fourth:
                    fourth.send(get(b"/live"))
                    assert (await fourth.response()).status == 200
                    assert await silent.closed() == b"", "without a word"
                    gate.release()
                    assert (await busy.response()).status == 200
        assert await router.metric("blade_router_evicted_connections_total") >= 1
        assert await router.metric("blade_router_client_connections") <= 4
        assert len(router.server.table) <= 4


async def test_beyond_the_limit_a_request_is_refused_in_words() -> None:
    engine = MockEngine("a", gate=asyncio.Semaphore(0))
    async with engine, serving(engine, max_connections=3, max_connections_per_address=0) as router:
        async with busy_clients(router, engine, 3):
            for request in (post(), START + b"content-length: 10000000\r\n\r\n", START):
                async with connected(router.port) as client:
                    client.send(request)
                    if request == START:
                        await eventually(lambda: any(each.stage is Stage.HEAD for each in router.server.connections))
                        (reserve,) = (each for each in router.server.connections if each.stage is Stage.HEAD)
                        reserve.check_deadlines(router.server.loop.time() + 2.1)  # less than others have
                        assert (await client.response()).status == 408
                        continue
                    response = await client.response()
                    assert (response.status, response.header("retry-after")) == (503, "1")
                    assert response.error["code"] == "overloaded"
                    assert await client.closed() == b""
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(2 * RESERVE):
                    await stack.enter_async_context(connected(router.port))
                assert (await probe(router)) == 200
                assert len(router.server.connections) <= 3 + RESERVE
        assert router.router.metrics.refused["overloaded"] == 2
        engine.gate = None
        async with connected(router.port) as client:
            client.send(post() + post())
            assert [(await client.response()).status for _ in range(2)] == [200, 200]


async def test_one_address_may_have_only_a_part_of_all_connections() -> None:
    engine = MockEngine("a", gate=asyncio.Semaphore(0))
    async with engine, serving(engine, max_connections=8) as router:
        async with busy_clients(router, engine, 4):
            async with connected(router.port) as client:
                client.send(post())
                assert (await client.response()).status == 503
            async with connected(router.port, local_addr=("127.0.0.2", 0)) as other:
                other.send(get(b"/health"))
                assert (await other.response()).status == 200
    proxies = TrustedProxies.parse(["127.0.0.0/30"])
    engine = MockEngine("a", gate=asyncio.Semaphore(0))
    async with engine, serving(engine, max_connections=8, trusted_proxies=proxies) as router:
        async with busy_clients(router, engine, 7):
            assert engine.active == 7, "a proxy has many clients"


@contextlib.asynccontextmanager
async def busy_clients(router: Running, engine: MockEngine, count: int) -> AsyncIterator[None]:
    """So many clients whose requests wait in the engine."""
    await router.client.aclose()  # its connection counts, too
    await eventually(lambda: not router.server.connections)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            client = await stack.enter_async_context(connected(router.port))
            client.send(post(BODY))
        await eventually(lambda: engine.active == count)
        yield
    await eventually(lambda: not engine.active)


async def probe(router: Running) -> int:
    async with connected(router.port) as client:
        client.send(get(b"/live"))
        return (await client.response()).status


# the table


class Fake:
    """A connection in a state of the test's choice."""

    def __init__(self, rank: Rank | None, address: str = "10.0.0.1") -> None:
        self.rank = rank
        self.address = address
        self.aborted = False
        self.asked = 0

    def idleness(self) -> Rank | None:
        self.asked += 1
        return self.rank

    def abort(self) -> None:
        self.aborted = True


def table(*connections: Fake, most: int, most_per_address: int = 0) -> ConnectionTable:
    found = ConnectionTable(lambda: 100.0, most, most_per_address)
    for connection in connections:
        found.add(connection)
    return found


def test_what_is_missed_least_makes_room_first() -> None:
    busy = Fake(None)
    stalled_body, body = Fake((Idleness.BODY, 98.0)), Fake((Idleness.BODY, 99.5))
    stalled_head, head = Fake((Idleness.HEAD, 98.9)), Fake((Idleness.HEAD, 99.1))
    silent, kept = Fake((Idleness.FIRST_REQUEST, 99.9)), Fake((Idleness.NEXT_REQUEST, 50.0))
    newer = Fake((Idleness.NEXT_REQUEST, 60.0))
    everything = [busy, stalled_body, body, newer, silent, stalled_head, head, kept]
    full = table(*everything, most=len(everything))
    order = []
    while full.make_room("10.0.0.9"):
        order += [each for each in everything if each.aborted and each not in order]
        full.add(Fake(None))
    assert order == [stalled_head, silent, kept, newer, stalled_body]
    assert (len(full), full.evicted) == (8, 5)


def test_a_connection_that_has_come_to_life_is_passed_over() -> None:
    first, second, third = (Fake((Idleness.NEXT_REQUEST, since)) for since in (1.0, 2.0, 3.0))
    full = table(first, second, third, most=3)
    assert full.make_room("10.0.0.9")
    assert first.aborted
    full.add(Fake(None))
    second.rank = None
    assert full.make_room("10.0.0.9")
    assert (second.aborted, third.aborted) == (False, True)


def test_an_address_makes_room_for_itself_at_its_limit() -> None:
    own, others = Fake((Idleness.NEXT_REQUEST, 9.0)), Fake((Idleness.NEXT_REQUEST, 1.0), "10.0.0.2")
    few = table(own, others, most=10, most_per_address=1)
    assert few.make_room("10.0.0.1")
    assert (own.aborted, others.aborted) == (True, False)
    few.add(Fake(None))
    assert not few.make_room("10.0.0.1")
    assert few.make_room("10.0.0.3")
    assert few.make_room(""), "a Unix socket has no address"


@pytest.mark.parametrize(
    ("first", "second", "one_client"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:203.0.113.9", "203.0.113.9", True),
        ("::ffff:203.0.113.9", "::ffff:203.0.113.10", False),
        ("64:ff9b::203.0.113.9", "64:ff9b::203.0.113.10", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("203.0.113.9", "203.0.113.10", False),
        ("no address", "no address", True),
    ],
)
def test_an_owner_of_many_addresses_is_one_client(first: str, second: str, one_client: bool) -> None:
    busy = Fake(None, first)
    few = table(busy, most=10, most_per_address=1)
    assert few.make_room(second) is not one_client
    few.discard(busy)
    assert few.make_room(second)
    assert len(few) == 0


def test_a_proxy_is_not_counted_with_its_neighbours() -> None:
    few = ConnectionTable(lambda: 100.0, 10, 1, lambda address: address == "2001:db8::1")
    for _ in range(3):
        few.add(Fake(None, "2001:db8::1"))
    assert few.make_room("2001:db8::1")
    assert few.make_room("2001:db8::2")


def test_a_crowd_costs_few_searches() -> None:
    """Each connection of a crowd is examined a few times, not once for each that comes after it."""
    crowd = [Fake((Idleness.FIRST_REQUEST, float(index))) for index in range(500)]
    full = table(*crowd, most=500)
    for index in range(5000):
        assert full.make_room("10.0.0.1")
        crowd.append(Fake((Idleness.FIRST_REQUEST, 500.0 + index)))
        full.add(crowd[-1])
    assert [each.aborted for each in crowd] == [True] * 5000 + [False] * 500, "the oldest first"
    assert sum(each.asked for each in crowd) < 4 * 5500
    workers = [Fake(None) for _ in range(100)]
    busy = table(*workers, most=100)
    assert not any(busy.make_room("10.0.0.1") for _ in range(1000))
    assert sum(each.asked for each in workers) == 100, "searched once in a while"


def test_the_oldest_of_the_reserve_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_table, "RESERVE", 2)
    reserve = [Fake((Idleness.FIRST_REQUEST, 1.0)) for _ in range(3)]
    full = table(most=0)
    for each in reserve:
        full.add_reserve(each)
    assert [each.aborted for each in reserve] == [True, False, False]
    full.discard(reserve[1])
    full.discard(reserve[0])
    assert len(full) == 0


def test_each_connection_may_need_two_descriptors() -> None:
    assert connections_for(RESERVED + 200) == 100
    assert connections_for(10) > 0


# who the client is


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.9", [b"1.1.1.1"], "203.0.113.9"),
        ("10.0.0.7", [], "10.0.0.7"),
        ("10.0.0.7", [b"6.6.6.6, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.7", [b"6.6.6.6", b"203.0.113.9, 10.1.2.3"], "203.0.113.9"),
        ("10.0.0.7", [b"203.0.113.9:4711"], "203.0.113.9"),
        ("::ffff:10.0.0.7", [b"[2001:db8::1]:80"], "2001:db8::1"),
        ("10.0.0.7", [b"2001:db8::2"], "2001:db8::2"),
        ("10.0.0.7", [b"203.0.113.9, unknown"], "10.0.0.7"),
        ("10.0.0.7", [b"10.0.0.8"], "10.0.0.8"),
        ("", [b"203.0.113.9"], ""),
    ],
)
def test_only_trusted_proxies_say_who_the_client_is(peer: str, forwarded: list[bytes], client: str) -> None:
    assert TrustedProxies.parse(["10.0.0.0/8", " ::1"]).client(peer, forwarded) == client
    assert TrustedProxies().client(peer, forwarded) == peer


def test_a_mistake_in_the_proxies_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--endpoints", "http://x:1", "--trusted_proxies", "10.0.0.0/8,proxy"])
    error = capsys.readouterr().err
    assert "'proxy'" in error
    assert error.count("\n") == 1
