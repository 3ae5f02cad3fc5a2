"""``blade_operator local up`` in a process of its own, with fakes for engine and router."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from blade_operator.cluster.local.layout import Layout
from blade_operator.cluster.local.process import marked
from blade_operator.cluster.local.store import read_objects
from blade_operator.model.objects import Object
from operator_support.local import free_port, kill_marked
from operator_support.objects import PROGRAM

T = TypeVar("T")

_SERVER = f"""#!{sys.executable}
import os, sys
extra = os.environ.get("FAKE_ENGINE", "").split()
os.execv({sys.executable!r}, [{sys.executable!r}, {PROGRAM!r}, *sys.argv[1:], *extra])
"""
_PACED_SERVER = f"""#!{sys.executable}
import os, sys
arguments = [*sys.argv[1:], "--load_format", "dummy"]
os.execv({sys.executable!r}, [{sys.executable!r}, "-m", "engine_support.serve", "paced", *arguments])
"""
_CHECK = f"""#!{sys.executable}
import json, os, sys
failed = int(os.environ.get("FAKE_CHECK_FAILS", "0"))
item = {{"name": "check_memory_fit", "status": "FAILED" if failed else "PASS", "detail": "needs 9 GiB of 4 GiB"}}
report = {{"passed": 1 - failed, "warnings": 0, "failed": failed, "items": [item]}}
open(os.environ["BLADE_TERMINATION_LOG"], "w").write(json.dumps(report))
print("check", "FAILED" if failed else "PASS")
sys.exit(failed)
"""
_ROUTER = _SERVER.replace("FAKE_ENGINE", "FAKE_ROUTER")
_REAL_ROUTER = f"""#!{sys.executable}
import os, sys
os.execv({sys.executable!r}, [{sys.executable!r}, "-m", "blade_router.app", *sys.argv[1:]])
"""


# Signals as in a terminal: these tests themselves may run in the background, or under `nohup`. By a program of its own:
# what a `preexec_fn` runs is Python in a fork of a process with many threads, which may crash.
_HEED_SIGNALS = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Loop:
    """A folder with a local runtime, and commands for it.

    Engines and routers are stand-ins, with ``real`` the real programs, with ``real_router`` only that one; with
    ``paced`` also the real server of an engine, around a model that needs no computing.
    """

    def __init__(self, folder: Path, *, real: bool = False, real_router: bool = False, paced: bool = False) -> None:
        self.folder = folder
        self.layout = Layout(folder / "state" / "bladellm" / "default")
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None
        self.output = folder / "up.txt"
        router, server = _REAL_ROUTER if real_router or paced else _ROUTER, _PACED_SERVER if paced else _SERVER
        self._python = sys.executable if real else str(_stand_ins(folder / "bin", router, server))
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "COLUMNS": "200",
        }

    def start(self, *args: str) -> None:
        """``blade_operator local up``; returns when it takes commands."""
        self.layout.socket.unlink(missing_ok=True)  # of a loop that was killed
        with self.output.open("a") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", _HEED_SIGNALS),
                    *self._argv("local", "up", "--port", str(self.port), *args),
                ],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.until(lambda: self.layout.socket.exists() or not self.alive)

    def command(self, *args: str, code: int | None = 0) -> str:
        """Run any other command; its output, both streams, after it ended with ``code`` (None: with any)."""
        done = subprocess.run(self._argv(*args), env=self.environment, capture_output=True, text=True, timeout=60)
        assert code in (None, done.returncode), f"{args} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def kill(self) -> None:
        """SIGKILL to the loop, and to nothing else."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def interrupt(self, number: int = signal.SIGINT) -> int:
        """Ctrl-C; the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    @property
    def alive(self) -> bool:
        """Whether the loop runs."""
        return self.process is not None and self.process.poll() is None

    def objects(self, kind: str) -> list[Object]:
        return list(read_objects(self.layout.objects, kind))

    def service(self, name: str) -> Object:
        return next((obj for obj in self.objects("LLMService") if obj["metadata"]["name"] == name), {})

    def condition(self, name: str, kind: str) -> str:
        conditions = self.service(name).get("status", {}).get("conditions", [])
        return next((str(each["status"]) for each in conditions if each["type"] == kind), "")

    def ready(self, name: str, replicas: int = 1) -> bool:
        status = self.service(name).get("status", {})
        return self.condition(name, "Ready") == "True" and status.get("readyReplicas") == replicas

    def processes(self) -> set[int]:
        """Everything the runtime started that lives."""
        return set(marked(self.layout.root))

    def said(self) -> str:
        return self.output.read_text()

    def until(self, condition: Callable[[], T | None], seconds: float = 30.0) -> T:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(0.05)
        status = json.dumps([obj.get("status") for obj in self.objects("LLMService")], indent=1)
        raise AssertionError(f"not within {seconds:g} s; status {status}; it said:\n{self.said()}")

    def _argv(self, *args: str) -> list[str]:
        return [self._python, "-m", "blade_operator.main", *args]


@contextlib.contextmanager
def loop(folder: Path, *, real: bool = False, real_router: bool = False, paced: bool = False) -> Iterator[Loop]:
    """A `Loop` of which nothing is left at the end."""
    running = Loop(folder, real=real, real_router=real_router, paced=paced)
    try:
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.kill()
        kill_marked(running.layout)


def manifest(folder: Path, name: str = "qwen", *, model: Path | None = None, **spec: Any) -> Path:
    """An LLMService as a file."""
    path = folder / f"{name}.yaml"
    body = {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name},
        "spec": {"model": {"uri": f"file://{model or folder}"}, **spec},
    }
    path.write_text(json.dumps(body))
    return path


def _stand_ins(folder: Path, router: str, server: str) -> Path:
    """A folder with a Python and programs beside it that the runtime takes for the installed ones."""
    folder.mkdir()
    for name, text in (("blade_llm_server", server), ("blade_llm_check", _CHECK), ("blade_router", router)):
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    python = folder / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    return python
