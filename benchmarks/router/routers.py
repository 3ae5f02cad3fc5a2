"""The routers that are compared: how each is started, when it is ready, and what it costs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx
import psutil

from benchmarks.fleet import free_port
from benchmarks.peers.peers import CACHE, install
from benchmarks.router.engines import Engine
from benchmarks.router.load import Wrong, open_caller, request
from blade_protocol import paths, ports
from blade_router.compiled.sources import SWITCH, find

READY_SECONDS = 60.0
PYTHON: Final = os.environ.get("ROUTER_PYTHON") or sys.executable
"""What ours runs on. Images have a Python that was compiled with profile-guided optimisation, as distributions do;
pyenv's is not, and takes a third longer. Another one must be of the same version: it uses this one's packages."""
_OURS = (path for path in sys.path if not path.startswith(sys.base_prefix))
_PYTHON_NEEDS: Final = {"PYTHONPATH": os.pathsep.join(_OURS)}
PEERS: Final = ("sglang", "smg", "vllm")
_ENVIRONMENTS: Final = {"sglang": "sglang-router", "smg": "smg", "vllm": "vllm-router"}
_QUIET: Final = {"RUST_LOG": "error", "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
"""Peers would fetch the mock's tokenizer from the hub: nothing is to leave the machine."""
ROUTER_CPU: Final = min(os.sched_getaffinity(0))
LOAD_CPU: Final = max(os.sched_getaffinity(0))


class Skipped(Exception):
    """Something cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Kind:
    """A router with its settings."""

    name: str
    peer: str = ""
    """Name in `PEERS`; empty: ours."""
    options: tuple[str, ...] = ()
    workers: int = 1
    internal: bool = False
    """Ours: the engines' internal routes are used, as in production; they are on the same port."""
    interpreted: bool = False
    """Ours without the compiled modules; otherwise they must be there."""
    module: str = "blade_router.app"
    """Ours: what is run."""

    def command(self, port: int, engines: Sequence[str], folder: Path) -> list[str]:
        """What starts it on ``port``; ours takes its endpoints from the options where they name a file."""
        where = ["--host", "127.0.0.1", "--port", str(port)]
        if not self.peer:
            endpoints: tuple[str, ...] = ("--endpoints", ",".join(engines))
            if "--config" in self.options:
                endpoints = ()
            elif self.internal:
                endpoints = ("--config", str(write_config(folder, engines, internal=True)))
            workers = ("--workers", str(self.workers)) if self.workers > 1 else ()
            return [PYTHON, "-m", self.module, *where, *endpoints, *workers, *self.options]
        environment = CACHE / _ENVIRONMENTS[self.peer] / "bin"
        program: dict[str, list[str]] = {
            "sglang": [str(environment / "python"), "-m", "sglang_router.launch_router"],
            "smg": [str(environment / "smg"), "launch"],
            "vllm": [str(environment / "vllm-router")],
        }
        quiet = ("--log-level", "warn" if self.peer != "vllm" else "warning", "--prometheus-port", str(free_port()))
        return [*program[self.peer], *where, "--worker-urls", *engines, *quiet, *self.options]

    def environment(self) -> dict[str, str]:
        """What ours needs beside the rest."""
        return {} if self.peer else {**_PYTHON_NEEDS, SWITCH: "0" if self.interpreted or find() is None else "1"}


def ours(*options: str, policy: str = "auto", workers: int = 1, internal: bool = False) -> Kind:
    return Kind("blade", options=("--policy", policy, *options), workers=workers, internal=internal)


def interpreted(kind: Kind) -> Kind:
    """The same router without compiled modules."""
    return replace(kind, name="interpreted", interpreted=True)


def write_config(folder: Path, engines: Sequence[str], *, internal: bool = False, **config: object) -> Path:
    """A configuration of ours for engines at these URLs, replaced as a whole as a mounted ConfigMap is."""
    path, new = folder / "router.json", folder / "router.json.new"
    endpoints = [{"url": url, "revision": "r", "internal_url": url} if internal else {"url": url} for url in engines]
    new.write_text(json.dumps({"endpoints": endpoints, **config}), encoding="utf-8")
    new.replace(path)
    return path


def peer(name: str, policy: str, *options: str) -> Kind:
    """``policy`` is ``cache_aware`` or ``round_robin``."""
    short = {"cache_aware": "", "round_robin": "_rr"}[policy]
    return Kind(name + short, name, ("--policy", policy, *options))


def available(names: Sequence[str]) -> list[str]:
    """The peers that install here; prints why the others do not."""
    found = []
    for name in names:
        try:
            install(_ENVIRONMENTS[name])
            found.append(name)
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"skipped: {name} does not install here: {error}")
    return found


class Router:
    """A started router."""

    def __init__(self, kind: Kind, engines: Sequence[str], *, pinned: bool = True) -> None:
        self.kind = kind
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix=f"{kind.name}-")
        folder = Path(self._folder.name)
        self._log = folder / "log"
        cpus = {ROUTER_CPU} if pinned else os.sched_getaffinity(0) | {ROUTER_CPU, LOAD_CPU}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                kind.command(self.port, engines, folder),
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_QUIET, **kind.environment()},
                preexec_fn=lambda: os.sched_setaffinity(0, cpus),
                start_new_session=True,
            )
        self._handle = psutil.Process(self._process.pid)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """Where ours has its metrics and status."""
        return f"http://127.0.0.1:{self.port + ports.INTERNAL_PORT_OFFSET}"

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    async def ready(self, engines: int) -> None:
        """Wait until it uses all its engines.

        Raises:
            Skipped: it does not know one of its options.
            RuntimeError: it ended, or is not ready in time.
        """
        deadline = time.monotonic() + READY_SECONDS
        async with httpx.AsyncClient(base_url=self.url, timeout=5, trust_env=False) as client:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    self._explain()
                with contextlib.suppress(httpx.TransportError, ValueError, KeyError, Wrong, OSError):
                    if await self._uses(client, engines):
                        return
                await asyncio.sleep(0.1)
        raise RuntimeError(f"{self.kind.name} is not ready after {READY_SECONDS:g} s:\n{self.log()[-2000:]}")

    async def _uses(self, client: httpx.AsyncClient, engines: int) -> bool:
        if not self.kind.peer:
            status = (await client.get(f"{self.admin_url}{paths.STATUS}")).json()
            return sum(endpoint["up"] is True for endpoint in status["endpoints"]) == engines
        if (await client.get("/health")).status_code != 200:
            return False
        if self.kind.peer in ("sglang", "smg"):
            workers = (await client.get("/workers")).json()["workers"]
            if sum(bool(worker.get("is_healthy")) for worker in workers) != engines:
                return False
        caller = await open_caller(self.port)
        try:
            await caller.request(*request("ready"))
        finally:
            caller.transport.abort()
        return True

    def _explain(self) -> None:
        text = self.log()
        last = text.strip().rpartition("\n")[2]
        if self._process.returncode == 2 and not self.kind.peer:
            raise Skipped(last)
        raise RuntimeError(f"{self.kind.name} ended with {self._process.returncode}:\n{text[-2000:]}")

    def _all(self) -> list[psutil.Process]:
        return [self._handle, *self._handle.children(recursive=True)]

    def cpu(self) -> float:
        """Seconds of CPU its threads have used, its children's included.

        As the scheduler has counted them: the times that all systems have come in steps of 10 ms, a tenth of what a
        short run of streams takes.
        """
        used = 0
        for process in self._all():
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                    used += int((task / "schedstat").read_text(encoding="ascii").split()[0])
        return used * 1e-9

    def signal(self, number: int) -> None:
        """Send its process a signal."""
        self._process.send_signal(number)

    def rss(self) -> float:
        """Resident memory in MiB, its children included."""
        return float(sum(process.memory_info().rss for process in self._all())) / 2**20

    def stop(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in reversed(self._all()):
                process.kill()
        self._process.wait()
        self._folder.cleanup()


@contextlib.asynccontextmanager
async def started(kind: Kind, engines: Sequence[Engine], *, pinned: bool = True) -> AsyncIterator[Router]:
    """A router over these engines, ready; it is alone on its CPU unless not ``pinned``.

    Raises:
        Skipped: it does not know one of its options.
    """
    router = Router(kind, [engine.url for engine in engines], pinned=pinned)
    delays = [engine.delay for engine in engines]
    try:
        for engine in engines:
            engine.delay = 0.0
        await router.ready(len(engines))
        for engine, delay in zip(engines, delays, strict=True):
            engine.forget()
            engine.delay = delay
        yield router
    finally:
        router.stop()
