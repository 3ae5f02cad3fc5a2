"""Servers whose engines are several processes: which these are, and how they end."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
from engine_support.server_process import ServerProcess, gone, wait_until

from blade_llm.cli.server import main


def rank_pids(server: ServerProcess) -> list[int]:
    """The processes of ranks 1 and on."""
    ranks = psutil.Process(server.engine_pid).children()
    assert all("blade_llm.engine.ranks.worker" in rank.cmdline() for rank in ranks)
    return [rank.pid for rank in ranks]


def segments(rank: int) -> list[str]:
    """The paths of what a rank's process shares with others in memory, as the kernel shows them."""
    maps = Path(f"/proc/{rank}/maps").read_text().splitlines()
    return [line[line.index("/") :] for line in maps if "/bladellm-ranks-" in line]


def end_of_stream(server: ServerProcess, strike: Callable[[], object]) -> str:
    """The last line of a stream that goes on when ``strike`` is called."""
    endless = {"prompt": "x", "max_tokens": 1900, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=endless, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        strike()
        *_, end = [line for line in lines if line]
    return end


def kill_rank(server: ServerProcess, pid: int, *, busy: bool) -> None:
    """Kill the process of rank 1, in the middle of a stream or while nothing is computed: the replica ends, and says
    once which rank it was."""
    _end_with(server, pid, signal.SIGKILL, ["rank 1", "SIGKILL"], busy=busy)


def stop_rank(server: ServerProcess, pid: int, *, rank: int = 1, busy: bool) -> None:
    """Stop the process of ``rank``, so that it hangs: the replica ends as when it is killed, and the process too."""
    says = f"rank {rank} hangs: its process was stopped (SIGSTOP) and did not go on within 3 s"
    _end_with(server, pid, signal.SIGSTOP, [says], busy=busy)
    wait_until(lambda: gone(pid))


def _end_with(server: ServerProcess, pid: int, number: signal.Signals, says: list[str], *, busy: bool) -> None:
    if not busy:
        os.kill(pid, number)
    else:
        end = end_of_stream(server, lambda: os.kill(pid, number))
        error = json.loads(end.removeprefix("data: "))["error"]
        assert error["code"] == "engine_dead"
        assert all(each in error["message"] for each in says)
    assert server.process.wait(20) == 1
    (failure,) = [line for line in server.output.splitlines() if "the engine failed" in line]
    assert all(each in failure for each in says)
    wait_until(lambda: gone(server.engine_pid))


def refusal_here(model: Path, *flags: str) -> str:
    """As :func:`refusal`, by the command called in this process, which saves the start of one."""
    says, before = io.StringIO(), signal.getsignal(signal.SIGTERM)
    command = ["--model", str(model), "--host", "127.0.0.1", *flags, "--load_format", "dummy", "--port", "0"]
    try:
        with contextlib.redirect_stderr(says):
            assert main(command) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "Traceback" not in says.getvalue()
    return says.getvalue()


def refusal(model: Path, *flags: str) -> str:
    """What a server says that these flags keep from starting: no traceback."""
    command = [sys.executable, "-m", "blade_llm.cli.server", "--model", str(model), "--host", "127.0.0.1"]
    command += [*flags, "--load_format", "dummy", "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    return ended.stderr
