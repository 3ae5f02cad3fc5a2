"""Real engines behind a real router, as processes on free loopback ports, for benchmarks and tests of the whole."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
DEMO_MODEL = ROOT / "examples" / "demo_model" / "model"
BIN = Path(sys.executable).parent


def free_port() -> int:
    """A port that is free together with the one 1,000 above it (an engine's internal port, a router's admin port)."""
    while True:
        with socket.socket() as public, socket.socket() as internal:
            public.bind(("127.0.0.1", 0))
            port: int = public.getsockname()[1]
            if port + 1000 > 65535:
                continue
            with contextlib.suppress(OSError):
                internal.bind(("127.0.0.1", port + 1000))
                return port


@dataclass
class Program:
    """A started console script, its output in a file."""

    name: str
    args: list[str]
    port: int
    log: Path
    threads: int = 1
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [str(BIN / self.name), *self.args],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": str(self.threads)},
                start_new_session=True,
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def internal_url(self) -> str:
        """An engine's internal port, or a router's admin port."""
        return f"http://127.0.0.1:{self.port + 1000}"

    def wait_healthy(self, seconds: float = 60.0, path: str = "/health") -> None:
        """Until ``path`` is there."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"{self.name} exited with {self.process.returncode}:\n{self.log.read_text()}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}{path}", timeout=2).status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{self.name} is not healthy after {seconds} s:\n{self.log.read_text()}")

    def kill(self) -> None:
        """SIGKILL to the whole group: API-server and engine process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def terminate(self, seconds: float = 20.0) -> int:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@dataclass
class Fleet:
    engines: list[Program]
    router: Program


def engine(folder: Path, *args: str, model: Path = DEMO_MODEL, name: str = "engine", threads: int = 1) -> Program:
    port = free_port()
    program = Program(
        "blade_llm_server",
        ["--model", str(model), "--host", "127.0.0.1", "--port", str(port), *args],
        port,
        folder / f"{name}.log",
        threads,
    )
    program.start()
    return program


def router(folder: Path, *args: str) -> Program:
    port = free_port()
    program = Program("blade_router", ["--host", "127.0.0.1", "--port", str(port), *args], port, folder / "router.log")
    program.start()
    return program


@contextlib.contextmanager
def fleet(
    folder: Path, replicas: int, *engine_args: str, model: Path = DEMO_MODEL, threads: int = 1
) -> Iterator[Fleet]:
    """``replicas`` engines behind one router; all gone afterwards."""
    engines = [engine(folder, *engine_args, model=model, name=f"engine-{i}", threads=threads) for i in range(replicas)]
    front = router(folder, "--endpoints", ",".join(program.url for program in engines))
    try:
        for program in [*engines, front]:
            program.wait_healthy()
        yield Fleet(engines, front)
    finally:
        for program in [front, *engines]:
            program.kill()
