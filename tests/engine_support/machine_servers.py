"""Real servers as the machines behind machine 0 of an engine on several."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
from engine_support.server_process import server_command, wait_until

MODEL_FLAGS = "--dtype", "float32", "--kv_cache_bytes", "16MiB"


class Machine:
    """A machine behind machine 0: a server process that answers probes."""

    def __init__(self, folder: Path, model: Path, *flags: str) -> None:
        self.log = folder / "machine.log"
        command = [*server_command("real"), "--model", str(model), "--load_format", "dummy", "--host", "127.0.0.1"]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--port", "0", *flags],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        wait_until(lambda: "Probes answered at" in self.output or self.process.poll() is not None, 60)
        match = re.search(r"Probes answered at (.+)", self.output)
        assert match, self.output
        self.url = f"http://{match[1]}"

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=30)

    def status(self, path: str) -> int:
        with contextlib.suppress(httpx.TransportError):  # it does not listen yet
            return self.get(path).status_code
        return 0

    @property
    def rank_pid(self) -> int:
        (rank,) = psutil.Process(self.process.pid).children()
        assert "blade_llm.engine.ranks.worker" in rank.cmdline()
        return rank.pid

    @property
    def errors(self) -> list[str]:
        return [line for line in self.output.splitlines() if line.startswith("blade_llm_server: error:")]


@contextlib.contextmanager
def running_machine(folder: Path, model: Path, *flags: str) -> Iterator[Machine]:
    """One that answers probes; killed at the end, also if it was stopped."""
    made = Machine(folder, model, *flags)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            made.process.send_signal(signal.SIGCONT)
        made.process.kill()
        made.process.wait()
