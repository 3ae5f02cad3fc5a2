"""Port-forwards through the API server: bytes pass as they come, in both directions, however many there are."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from operator_support.fake_cluster import fake_cluster, pod

from blade_operator.kubectl.places.cluster_place import ClusterPlace

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@contextlib.contextmanager
def forwarded(folder: Path, serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """``HOST:PORT`` that leads through an API server to ``serve``, which gets each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, fake_cluster(folder) as cluster:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        router = pod("router", "router")
        cluster.ports["router", 80] = server.getsockname()[1]
        with ClusterPlace(str(cluster.kubeconfig), None) as place, place.reach(router, "http") as reached:
            yield reached.authority


def test_a_connection_that_is_cut_at_the_end_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    closed = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            connection.sendall(HEAD + b"data: one\n\n")
            closed.wait(30)

    with forwarded(tmp_path, serve) as authority:
        client = httpx.Client(timeout=30, trust_env=False)
        stream = client.send(client.build_request("GET", f"http://{authority}/"), stream=True)
        assert next(stream.iter_raw()) == b"data: one\n\n"
    closed.set()
    client.close()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_a_stream_arrives_before_it_ends(tmp_path: Path) -> None:
    go_on = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            connection.sendall(HEAD + b"data: one\n\n")
            if go_on.wait(30):
                connection.sendall(b"data: two\n\n")

    with forwarded(tmp_path, serve) as authority:
        with httpx.stream("GET", f"http://{authority}/", timeout=30, trust_env=False) as response:
            pieces = response.iter_raw()
            assert next(pieces) == b"data: one\n\n"  # or it fails after 30 s, without the other piece
            go_on.set()
            assert b"".join(pieces) == b"data: two\n\n"


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_every_byte_passes(tmp_path: Path, size: int) -> None:
    def serve(connection: socket.socket) -> None:
        """Echo a body of ``size`` bytes."""
        with connection:
            received = b""
            while b"\r\n\r\n" not in received:
                received += connection.recv(65536)
            body = received.partition(b"\r\n\r\n")[2]
            while len(body) < size:
                body += connection.recv(65536)
            connection.sendall(HEAD + body)

    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with forwarded(tmp_path, serve) as authority:
        for _ in range(2):
            response = httpx.post(f"http://{authority}/", content=body, timeout=60, trust_env=False)
            assert response.content == body
