"""llama.cpp's server, with a draft model or without: one prompt after another, timed by the server itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.fleet import Program, free_port
from benchmarks.peers.peers import CACHE, install, write_gguf

_ENVIRONMENT = "llama-server"
_OPTIONS = ("--host", "127.0.0.1", "--threads", "1", "--parallel", "1", "--ctx-size", "512", "--cache-ram", "0")
_DRAFTING = ("--spec-type", "draft-simple", "--spec-draft-n-max")


@dataclass
class LlamaServer:
    """One that runs, and how many tokens it drafted and accepted so far."""

    client: httpx.Client
    drafted: int = 0
    accepted: int = 0

    def complete(self, prompt: list[int], length: int) -> tuple[list[int], float]:
        """The greedy tokens before the end token, at most as many, and the seconds from the first one to the end."""
        body = {"prompt": prompt, "n_predict": length, "temperature": 0.0, "return_tokens": True, "cache_prompt": False}
        message: dict[str, Any] = self.client.post("/completion", json=body).raise_for_status().json()
        timings = message["timings"]
        self.drafted += timings.get("draft_n", 0)
        self.accepted += timings.get("draft_n_accepted", 0)
        tokens: list[int] = message["tokens"]
        return tokens[:-1] if message["stop_type"] == "eos" else tokens, timings["predicted_ms"] / 1000


@contextmanager
def llama_server(model: Path, draft: Path | None = None, gamma: int = 0) -> Iterator[LlamaServer]:
    """Convert these models and serve them on one thread, for one request at a time."""
    install(_ENVIRONMENT)
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ["--model", _converted(model, folder), "--port", str(port), *_OPTIONS]
        if draft is not None:
            options += ["--model-draft", _converted(draft, folder), *_DRAFTING, str(gamma)]
        program = Program(str(CACHE / _ENVIRONMENT / "bin" / "llama-server"), options, port, folder / "log")
        program.start()
        try:
            program.wait_healthy()
            with httpx.Client(base_url=program.url, timeout=60) as client:
                yield LlamaServer(client)
        finally:
            program.kill()


def _converted(model: Path, folder: Path) -> str:
    file = folder / f"{model.name}.gguf"
    write_gguf(_ENVIRONMENT, model, file)
    return str(file)
