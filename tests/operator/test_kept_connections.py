"""Connections that are kept for the next request: used again, bounded, and left when their server is gone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from operator_support.local import free_port, until

from blade_operator import kept_connections
from blade_operator.http_response import BODY_LIMIT, Response
from blade_operator.kept_connections import KeptConnections, Peer

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Server:
    """What came to a server, and its connections; ``response`` is what it says, nothing when that is empty."""

    response: bytes = OK
    requests: list[str] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    port: int = 0
    after: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None

    def peer(self, identity: str = "a") -> Peer:
        return Peer(identity, "127.0.0.1", self.port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while True:
                self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
                writer.write(self.response)
                if self.after is not None:
                    await self.after(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[KeptConnections]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    client = KeptConnections(5.0)
    try:
        yield client
    finally:
        client.close()
        listening.close()


async def test_requests_of_one_peer_share_a_connection_and_have_headers_of_their_own() -> None:
    server = Server()
    async with running(server) as client:
        for token in ("one", "two", "three"):
            assert await client.get(server.peer(), "/signals", {"x-token": token}) == Response(200, b"ok", True)
            assert f"x-token: {token}\r\n" in server.requests[-1]
        assert (len(server.requests), server.connections, len(client)) == (3, 1, 1)
        assert server.requests[0].startswith(f"GET /signals HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n")


async def test_who_has_the_address_later_gets_a_connection_of_its_own() -> None:
    server = Server()
    async with running(server) as client:
        await client.get(server.peer("old"), "/", {})
        await client.get(server.peer("new"), "/", {})
        assert (server.connections, len(client)) == (2, 2)


async def test_requests_at_the_same_time_have_connections_of_which_one_is_kept() -> None:
    server = Server()
    async with running(server) as client:
        await asyncio.gather(*(client.get(server.peer(), "/", {}) for _ in range(4)))
        assert len(client) == 1
        await until(lambda: server.open == 1)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def test_a_connection_that_the_server_closes_is_replaced_and_nobody_notices() -> None:
    server = Server(after=_close)  # without having said so
    async with running(server) as client:
        for _ in range(3):
            assert (await client.get(server.peer(), "/", {})).body == b"ok"
        assert server.connections == 3


async def test_a_server_that_closes_as_a_request_comes_is_asked_once_more_and_not_again() -> None:
    server = Server()
    async with running(server) as client:
        await client.get(server.peer(), "/", {})
        server.response, server.after = b"", _close
        with pytest.raises(ConnectionError):
            await client.get(server.peer(), "/", {})
        assert (len(server.requests), server.connections, len(client)) == (3, 2, 0)
        server.response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
        with pytest.raises(ConnectionError):
            await client.get(server.peer(), "/", {})
        assert len(server.requests) == 4, "a connection that is new is not asked twice"


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK",
    ],
)
async def test_a_connection_that_is_of_no_further_use_is_not_kept(response: bytes) -> None:
    server = Server(response)
    async with running(server) as client:
        assert (await client.get(server.peer(), "/", {})).body == b"ok"
        assert len(client) == 0
        await until(lambda: server.open == 0)


async def test_what_nobody_asked_for_ends_the_connection() -> None:
    server = Server()
    async with running(server) as client:

        async def later(writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.01)
            writer.write(OK)

        server.after = later
        await client.get(server.peer(), "/", {})
        await until(lambda: server.open == 0)
        server.after = None
        assert (await client.get(server.peer(), "/", {})).body == b"ok"
        assert server.connections == 2


async def test_a_server_that_is_silent_is_left_and_its_late_response_is_nobodys() -> None:
    server = Server(b"")
    async with running(server):
        client = KeptConnections(0.05)
        with pytest.raises(TimeoutError):
            await client.get(server.peer(), "/", {})
        assert len(client) == 0
        await until(lambda: server.open == 0)


@pytest.mark.parametrize(
    "response",
    [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (BODY_LIMIT + 1)],
)
async def test_a_response_of_another_kind_or_too_long_is_an_error_and_its_connection_is_closed(response: bytes) -> None:
    server = Server(response)
    async with running(server) as client:
        with pytest.raises(ValueError, match="response"):
            await client.get(server.peer(), "/", {})
        await until(lambda: server.open == 0)
        assert len(client) == 0


async def test_nobody_listens() -> None:
    client = KeptConnections(5.0)
    with pytest.raises(OSError, match="onnect"):
        await client.get(Peer("a", "127.0.0.1", free_port()), "/", {})


async def test_so_many_requests_are_in_flight_and_others_wait() -> None:
    server = Server(b"")
    async with running(server):
        client = KeptConnections(5.0, most_requests=3)
        tasks = [asyncio.create_task(client.get(server.peer(str(number)), "/", {})) for number in range(8)]
        await until(lambda: len(server.requests) == 3)
        await asyncio.sleep(0.05)
        assert server.connections == 3
        for task in tasks[:2]:
            task.cancel()
        await until(lambda: len(server.requests) == 5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: server.open == 0)


async def test_so_many_connections_are_kept_and_the_longest_idle_one_goes() -> None:
    server = Server()
    async with running(server):
        client = KeptConnections(5.0, most_kept=2)
        for identity in ("a", "b", "a", "c"):
            await client.get(server.peer(identity), "/", {})
        assert (server.connections, len(client)) == (3, 2)
        await client.get(server.peer("a"), "/", {})
        assert server.connections == 3
        await client.get(server.peer("b"), "/", {})
        assert server.connections == 4
        client.close()
        await until(lambda: server.open == 0)
        await client.get(server.peer("a"), "/", {})
        assert len(client) == 0, "a client that is closed keeps nothing"
        await until(lambda: server.open == 0)


async def test_a_connection_that_nobody_uses_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_connections, "IDLE_SECONDS", 0.05)
    server = Server()
    async with running(server) as client:
        await client.get(server.peer(), "/", {})
        await until(lambda: server.open == 0)
        assert len(client) == 0
