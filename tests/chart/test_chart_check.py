"""The script that `helm test` runs: a problem it finds is reported and ends in a failure."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from chart_support.files import CHART


@contextmanager
def operator(status: int, body: bytes = b"") -> Iterator[str]:
    """A server that answers ``GET /readyz`` with ``status``; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def check(url: str, *namespaces: str, **environment: str) -> tuple[int, list[str]]:
    """Exit code and lines of the script, run as the test pod runs it, outside a cluster."""
    source = (CHART / "files/check.py").read_text()
    done = subprocess.run(
        [sys.executable, "-c", source, url, *namespaces],
        env={"PATIENCE": "0", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_a_ready_operator_alone_is_not_enough() -> None:
    with operator(200) as url:
        code, lines = check(url)
    assert code == 1
    assert lines[0] == f"ok      the operator is ready ({url}/readyz)"
    assert lines[1].startswith("FAILED  LLMServices can be listed in all namespaces: ")


def test_external_metrics_are_looked_at_where_they_are_served() -> None:
    with operator(200) as url:
        code, lines = check(url, EXTERNAL_METRICS="external.metrics.k8s.io")
    assert code == 1
    assert len(lines) == 3
    assert lines[2].startswith(
        "FAILED  the API server reaches the operator's external metrics (external.metrics.k8s.io): "
    )


def test_an_operator_that_is_not_ready_is_quoted() -> None:
    with operator(503, b"caches are not filled: pods") as url:
        code, lines = check(url, "team-a", "team-b")
    assert code == 1
    assert lines[0].startswith("FAILED  the operator is ready")
    assert lines[0].endswith("caches are not filled: pods")
    assert [line.split(":")[0] for line in lines[1:]] == [
        "FAILED  LLMServices can be listed in namespace team-a",
        "FAILED  LLMServices can be listed in namespace team-b",
    ]
