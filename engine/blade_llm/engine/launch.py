"""Start an engine process, notice when and why it exits, never leave it behind. For the supervisor; no torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from blade_llm.config import EngineConfig
from blade_llm.engine.child_process import silent_failure
from blade_llm.engine.heartbeat import create_heartbeat
from blade_llm.engine.messages import EngineFailure, EngineStart
from blade_llm.engine.ranks.hangs import HangWatch
from blade_llm.engine.ranks.lost import LostRank
from blade_llm.engine.start import signals_blocked, write_start

BUILD: Final = "blade_llm.engine.build:build_core"
MAX_SOCKET_DIR_BYTES: Final = 107 - len("/blade_llm-12345678/engine")
"""The kernel allows 107 bytes for a unix socket's path."""
_STOP_SECONDS: Final = 3.0


class EngineHandle:
    """A running engine process and the private folder its socket lives in."""

    rank: Final = 0
    """Its number where it has further ranks."""

    def __init__(self, *, build: str = BUILD, log_level: str = "INFO", socket_dir: Path | None = None) -> None:
        """Spawn the process, which imports what it needs until :meth:`start`.

        ``build`` names the function that makes the core (tests give a fake one); ``socket_dir`` is where the private
        folder is made, the system's temporary folder by default.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="blade_llm-", dir=socket_dir))
        self.address = f"ipc://{self._folder / 'engine'}"
        self.heartbeat = create_heartbeat()
        """Descriptor of the memory in which the process shows that it works; see :mod:`blade_llm.engine.heartbeat`."""
        self._build, self._log_level, self._started = build, log_level, False
        failure, self._failure_pipe = os.pipe()
        self._failure = os.fdopen(failure, "rb")
        with signals_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "blade_llm.engine.process", build],
                stdin=subprocess.PIPE,
                pass_fds=(self._failure_pipe, self.heartbeat),
            )
        os.close(self._failure_pipe)
        self._hang: EngineFailure | None = None
        # Only where it is stopped: what waits for ever has no heartbeat.
        self._watch = HangWatch([self], self._hangs, lambda: False)

    def start(self, config: EngineConfig) -> None:
        """Let the process load the model, on its own while the caller continues. To be called once."""
        assert self._process.stdin is not None
        self._started = True
        start = EngineStart(
            config=config,
            address=self.address,
            failure_pipe=self._failure_pipe,
            heartbeat=self.heartbeat,
            build=self._build,
            log_level=self._log_level,
        )
        with contextlib.suppress(BrokenPipeError):  # died at once: wait() returns why
            write_start(self._process.stdin, start)
        if config.num_ranks > 1:  # the others, perhaps on other machines, wait for it
            self._watch.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> EngineFailure:
        """Block until the process has exited and return why. To be called once."""
        code = self._process.wait()
        with self._failure as pipe:
            data = pipe.read()
        if self._hang is not None:
            return self._hang
        try:
            return msgspec.msgpack.decode(data, type=EngineFailure)
        except msgspec.DecodeError:
            return silent_failure("engine process", code)

    def remove_folder(self) -> None:
        """Remove the socket's folder, which a connected socket no longer needs: even SIGKILL then leaves nothing."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Stop the process (kill it after a while) and remove the folder. Idempotent."""
        self._watch.close()
        if self.heartbeat >= 0:
            os.close(self.heartbeat)
            self.heartbeat = -1
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS if self._started else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.remove_folder()

    def kill(self) -> None:
        """Kill the process and remove the folder."""
        self._watch.close()
        self._process.kill()
        self._process.wait()
        self.remove_folder()

    def _hangs(self, lost: LostRank) -> None:
        self._hang = lost.failure
        self._process.kill()
