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
from hub_support import fake_hub
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


ORIGINS_MAIN: Final = """
import sys, time
from pathlib import Path
from hub_support import fake_hub, fake_origins
endpoint, port = sys.argv[1:]
with fake_hub.running_hub("0.0.0.0", int(port), fake_origins.OriginsHandler) as hub:
    hub.endpoint = endpoint
    hub.add("acme/demo", Path("/models/model"), token="ms-token")
    hub.add("models/demo", Path("/models/model"))
    hub.tokens["models"] = "bucket-key"
    print("ready", flush=True)
    while True:
        time.sleep(3600)
"""


class Hub:
    """A hub in ``namespace`` with the repository ``acme/demo``; its files come from the claim `CLAIM`."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.endpoint = f"http://{NAME}.{namespace}.svc:{PORT}"

    def start(self, image: str, bytes_per_second: int, token: str = "") -> None:
        """Returns once it responds."""
        self._start(image, [FAKE_HUB], MAIN, [self.endpoint, str(PORT), str(bytes_per_second), token])

    def _start(self, image: str, modules: list[Path], main: str, arguments: list[str]) -> None:
        code = {**{path.name: path.read_text() for path in modules}, "main.py": main}
        files = [{"key": path.name, "path": f"{path.parent.name}/{path.name}"} for path in modules]
        pod = restricted_pod(
            NAME,
            image,
            ["python3", "-u", "/code/main.py", *arguments],
            volumeMounts=[{"name": "code", "mountPath": "/code"}, {"name": "models", "mountPath": "/models"}],
        )
        pod["spec"]["volumes"] = [
            {"name": "code", "configMap": {"name": NAME, "items": [*files, {"key": "main.py", "path": "main.py"}]}},
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


class Origins(Hub):
    """ModelScope and a registry with ``acme/demo``, and a bucket ``models`` with ``demo``; all ask for credentials."""

    def run(self, image: str) -> None:
        """Returns once it responds."""
        self._start(image, [FAKE_HUB, FAKE_HUB.with_name("fake_origins.py")], ORIGINS_MAIN, [self.endpoint, str(PORT)])

    def secrets(self) -> list[Object]:
        """Secrets ``scope``, ``bucket`` and ``registry`` with what it asks for."""
        host = self.endpoint.removeprefix("http://")
        login = {"auths": {host: {"username": "me", "password": "secret"}}}
        return [
            secret_of("scope", {"token": "ms-token"}),
            secret_of("bucket", {"AWS_ACCESS_KEY_ID": "bucket-key", "AWS_SECRET_ACCESS_KEY": "any"}),
            secret_of("registry", {".dockerconfigjson": json.dumps(login)}, "kubernetes.io/dockerconfigjson"),
        ]


def secret_of(name: str, values: dict[str, str], kind: str = "Opaque") -> Object:
    """A Secret with ``values``."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": values}


def secret(name: str, token: str) -> str:
    """A Secret with a hub's token, as JSON."""
    return json.dumps(secret_of(name, {"token": token}))
