"""A pod with a fake model hub: the one of the fast tests, slowed down so that a download can be watched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from e2e.cluster.base import Cluster
from e2e.support.restricted import restricted_pod
from e2e.support.service import CLAIM, Object
from e2e.support.waiting import until

NAME: Final = "hub"
PORT: Final = 8000
FAKE_HUB: Final = Path(__file__).resolve().parents[2] / "tests" / "hub_support" / "fake_hub.py"

MAIN: Final = """
import signal, sys, time
from pathlib import Path
import fake_hub
endpoint, port, bytes_per_second, token = sys.argv[1:]
with fake_hub.running_hub("0.0.0.0", int(port)) as hub:
    hub.endpoint, hub.bytes_per_second = endpoint, float(bytes_per_second)
    signal.signal(signal.SIGUSR1, lambda *_: setattr(hub, "bytes_per_second", None))
    hub.add("acme/demo", Path("/models/model"), token=token or None)
    print("ready", flush=True)
    reported = 0
    while True:
        for request in hub.requests[reported:]:
            print(request.method, request.path, request.range, flush=True)
            reported += 1
        time.sleep(0.05)
"""
"""Prints every request."""


class Hub:
    """A hub in ``namespace`` with the repository ``acme/demo``; its files come from the claim `CLAIM`."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.endpoint = f"http://{NAME}.{namespace}.svc:{PORT}"

    def start(self, image: str, bytes_per_second: int, token: str = "") -> None:
        """Returns once it responds."""
        code = {"fake_hub.py": FAKE_HUB.read_text(), "main.py": MAIN}
        arguments = [self.endpoint, str(PORT), str(bytes_per_second), token]
        pod = restricted_pod(
            NAME,
            image,
            ["python3", "-u", "/code/main.py", *arguments],
            volumeMounts=[{"name": "code", "mountPath": "/code"}, {"name": "models", "mountPath": "/models"}],
        )
        pod["spec"]["volumes"] = [
            {"name": "code", "configMap": {"name": NAME}},
            {"name": "models", "persistentVolumeClaim": {"claimName": CLAIM, "readOnly": True}},
        ]
        config: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": code}
        ports = {"selector": {"app": NAME}, "ports": [{"port": PORT}]}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": ports}
        self.cluster.apply(config, service, pod, namespace=self.namespace)
        until(lambda: "ready\n" in self.log(), 60, "the hub")

    def hurry(self) -> None:
        """From now on every file comes as fast as it goes."""
        code = "import os, signal; os.kill(1, signal.SIGUSR1)"
        self.cluster.kubectl("-n", self.namespace, "exec", NAME, "--", "python3", "-c", code)

    def log(self) -> str:
        return self.cluster.kubectl("-n", self.namespace, "logs", NAME, check=False)

    def downloads(self) -> int:
        """Number of requests for weights."""
        return sum(line.startswith("GET /storage/") for line in self.log().splitlines())

    def environment(self) -> list[Object]:
        """``spec.engine.env`` that makes services download from it."""
        return [{"name": "HF_ENDPOINT", "value": self.endpoint}, {"name": "OMP_NUM_THREADS", "value": "1"}]


def secret(name: str, token: str) -> str:
    """A Secret with a hub's token, as JSON."""
    return json.dumps(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"token": token}}
    )
