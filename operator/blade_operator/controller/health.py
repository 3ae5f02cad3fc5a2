"""The operator's HTTP endpoints: ``/healthz`` and ``/readyz`` for the kubelet, ``/metrics`` for Prometheus.

Prometheus' own server responds, in threads of its own: the probes look at the control loop from outside.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import start_http_server

Probe = Callable[[], str]
"""What is wrong; empty when all is well."""


@contextmanager
def serve(port: int, healthy: Probe, ready: Probe, host: str | None = None) -> Iterator[int]:
    """Serve on ``port`` (0: a free one) of ``host`` (default: every address) meanwhile; gives the port.

    The probes are called in threads.

    Raises:
        OSError: the port is taken.
    """
    probes = {"/healthz": healthy, "/readyz": ready}
    server, thread = start_http_server(port, host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0"))
    metrics = server.get_app()
    assert metrics is not None

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        probe = probes.get(environ["PATH_INFO"])
        if probe is None:
            return metrics(environ, start_response)
        wrong = probe()
        status = "503 Service Unavailable" if wrong else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{wrong or 'ok'}\n".encode()]

    server.set_app(app)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
