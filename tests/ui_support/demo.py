"""The demo service as ``make run`` starts it, with an adapter; and other routers in front of its engines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet import Program, router
from operator_support.loop import Loop, loop, manifest
from router_support import keys

from blade_protocol.labels import ROLE, ROLE_ENGINE

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "demo-model"
ADAPTER = "polite"
QUESTION = "What does len do?"
ANSWER = "The built-in len() returns the number of items in a container."
SECONDS = 300.0


@dataclass(frozen=True)
class Demo:
    """A service that is ready."""

    running: Loop

    @property
    def origin(self) -> str:
        """Scheme, host and port of its router."""
        return f"http://127.0.0.1:{self.running.port}"

    def engines(self) -> list[str]:
        """Base URLs of its engines."""
        pods = [pod for pod in self.running.objects("Pod") if pod["metadata"]["labels"][ROLE] == ROLE_ENGINE]
        return [
            f"http://{pod['status']['podIP']}:{port['containerPort']}"
            for pod in pods
            for port in pod["spec"]["containers"][0]["ports"]
            if port["name"] == "http"
        ]


@contextlib.contextmanager
def demo(folder: Path) -> Iterator[Demo]:
    """Two engines, a router, and one adapter that both engines serve."""
    adapters = [{"name": ADAPTER, "uri": f"file://{EXAMPLES}/lora/adapter"}]
    engine = {"dtype": "float32", "kvCacheBytes": "64Mi", "lora": {"maxGPU": 2, "maxCPU": 4}}
    path = manifest(folder, NAME, model=EXAMPLES / "demo_model" / "model", replicas=2, engine=engine, adapters=adapters)
    with loop(folder, real=True) as running:
        running.start("-f", str(path))
        running.until(lambda: running.ready(NAME, 2), SECONDS)
        running.until(lambda: running.condition(NAME, "AdaptersReady") == "True", SECONDS)
        yield Demo(running)


@contextlib.contextmanager
def lone_router(folder: Path, *flags: str) -> Iterator[Program]:
    """A router of its own with these flags, which finds its engines healthy."""
    program = router(folder, *flags)
    try:
        program.wait_healthy(SECONDS)
        yield program
    finally:
        program.kill()


def keys_file(folder: Path, **secrets: str) -> Path:
    """API keys by name, as the router reads them."""
    path = folder / "keys.json"
    keys.write(path, keys.content(*(keys.key(name, secret) for name, secret in secrets.items())))
    return path
