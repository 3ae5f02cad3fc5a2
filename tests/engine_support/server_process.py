"""A real ``blade_llm_server`` as a process, for tests: API-server and engine process, ephemeral ports."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx
import psutil

if TYPE_CHECKING:
    from openai import OpenAI

TESTS = Path(__file__).parents[1]


Engine = Literal["paced", "unpaced", "scripted", "real"]


def server_command(engine: Engine = "paced") -> list[str]:
    """The command that serves with this engine; flags follow."""
    module = ["blade_llm.cli.server"] if engine == "real" else ["engine_support.serve", engine]
    return [sys.executable, "-m", *module]


class ServerProcess:
    """Start and wait until it is ready. ``engine``: one of :mod:`engine_support.fake_engine`, or the real one."""

    def __init__(self, folder: Path, model: Path, *flags: str, engine: Engine = "paced") -> None:
        self.log = folder / "server.log"
        self.sockets = folder / "sockets"
        self.sockets.mkdir(parents=True)
        command = [
            *(*server_command(engine), "--model", str(model), "--load_format", "dummy"),
            *("--host", "127.0.0.1", "--port", "0", "--worker_socket_path", str(self.sockets), *flags),
        ]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": _python_path(), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        self.url = f"http://{self._wait_for(r'Entrypoint API ready at (.+)')}"
        self.internal_url = f"http://{self._wait_for(r'Internal API at (.+)')}"
        children = psutil.Process(self.process.pid).children()
        (self.engine_pid,) = (child.pid for child in children if "blade_llm.engine.process" in child.cmdline())
        self.api_server_pids = [child.pid for child in children if child.pid != self.engine_pid]
        """Process ids of the API servers beyond the first."""

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    @property
    def client(self) -> OpenAI:
        import openai  # here, as every test loads this module, also where there is no such client: beside a GPU

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=60)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.internal_url}/internal/state", timeout=10).json()
        return found

    def wait_idle(self) -> dict[str, Any]:
        """The state once nothing runs."""
        wait_until(lambda: self.state()["running"] + self.state()["waiting"] == 0)
        return self.state()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        for pid in (self.process.pid, self.engine_pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _wait_for(self, pattern: str, seconds: float = 90.0) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if match := re.search(pattern, self.output):
                return match[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f"not ready (status {self.process.wait()}):\n{self.output}")


def _python_path() -> str:
    """The tests' own modules beside this process's own path: perhaps another working tree than the installed one."""
    return os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH", ""))))


@contextlib.contextmanager
def running_server(folder: Path, model: Path, *flags: str, **options: Any) -> Iterator[ServerProcess]:
    server = ServerProcess(folder, model, *flags, **options)
    try:
        yield server
    finally:
        server.kill()


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Poll ``condition``; fails when it does not become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether no process (but perhaps a zombie) has ``pid``."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
