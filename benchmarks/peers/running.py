"""A worker that runs: start it, send it requests, know its memory."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch

from benchmarks.peers.peers import CACHE, Peer, install
from benchmarks.peers.shapes import Shape
from blade_llm.runner.startup.threads import usable_cores

_WORKERS = Path(__file__).parent / "workers"
KV_BYTES: Final = 512 << 20


def worker_options(shape: Shape) -> dict[str, Any]:
    """What every worker is told; its peer adds to it."""
    return {
        "threads": usable_cores(),
        "kv_bytes": KV_BYTES,
        "kv_tokens": KV_BYTES // shape.kv_token_bytes,
        "max_length": 4096,
        "dtype": "auto",
        # torch's engines multiply with oneDNN, which has bf16 only where the CPU has instructions for it
        "peer_dtype": "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32",
        "quant": "none",
    }


@dataclass(frozen=True)
class Generated:
    """What a worker made of some prompts."""

    seconds: float
    tokens: list[list[int]]


class Running:
    """One engine, loaded. A context manager. Its output goes to a log file beside the environments."""

    def __init__(self, peer: Peer, model: Path, **options: Any) -> None:
        """Install and convert what is needed, then start it and wait until it is ready.

        Raises:
            RuntimeError: it ended before; the message names its log.
        """
        install(peer.environment)
        given = {**options, **peer.options, **peer.prepare(model)}
        self._log = CACHE / "logs" / f"{peer.name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": str(options["threads"]), **peer.variables()}
        begin = time.perf_counter()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [peer.python, _WORKERS / peer.worker, json.dumps(given)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True,
            )  # fmt: skip
        self._read()
        self.seconds_to_ready = time.perf_counter() - begin
        self.peer = peer

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def generate(self, prompts: list[list[int]], max_tokens: int, adapters: Sequence[str] | None = None) -> Generated:
        """Generate for all prompts at once; ``adapters``: of each prompt, empty for none.

        Raises:
            RuntimeError: the worker ended, or an output is shorter than requested.
        """
        assert self._process.stdin is not None
        request: dict[str, Any] = {"prompts": prompts, "max_tokens": max_tokens}
        if adapters is not None:
            request["adapters"] = list(adapters)
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        message = self._read()
        lengths = {len(tokens) for tokens in message["tokens"]}
        if lengths != {max_tokens}:
            raise RuntimeError(f"{self.peer.name} returned {lengths} tokens, wanted {max_tokens}")
        return Generated(message["seconds"], message["tokens"])

    @property
    def peak_rss(self) -> int:
        """Peak resident memory in bytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with {self._process.wait()}; its output: {self._log}")
        return json.loads(line)
