"""A thousand registered adapters on a real server: none is read before a request comes for it, and all are listed."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import psutil
import pytest
from engine_support.adapters import targets_of, write_adapter
from engine_support.server_process import running_server

COUNT = 1000
FLAGS = ("--dtype", "float32", "--kv_cache_bytes", "32MiB", "--enable_lora", "true", "--max_cpu_loras", "8")


def test_a_thousand_registered_adapters(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> None:
    folder = tmp_path_factory.mktemp("many")  # a short path, for the server's sockets
    adapter = write_adapter(folder / "adapter", targets_of(text_model))
    (folder / "server").mkdir()
    with (
        running_server(folder / "server", text_model, *FLAGS, engine="real") as server,
        httpx.Client(base_url=server.internal_url, timeout=30) as internal,
        httpx.Client(base_url=server.url, timeout=30) as public,
    ):
        processes = [server.process.pid, *(child.pid for child in psutil.Process(server.process.pid).children(True))]

        def memory() -> int:
            return sum(psutil.Process(process).memory_info().rss for process in processes)

        fields = {"lora_path": str(adapter), "register_only": True, "wait": False}
        before = memory()
        for number in range(COUNT):
            while (
                response := internal.post("/internal/adapters/load", json=fields | {"lora_name": f"n{number}"})
            ).is_error:
                assert response.status_code == 503, response.text  # 64 wait to be checked
                time.sleep(0.01)
        while len(internal.get("/internal/state").json()["adapters"]) < COUNT:
            time.sleep(0.05)
        assert memory() - before < 64 << 20
        assert len(public.get("/v1/models").json()["data"]) == COUNT + 1
        for number in range(0, COUNT, 100):
            body = {"model": f"n{number}", "prompt": "x", "max_tokens": 2, "ignore_eos": True}
            assert public.post("/v1/completions", json=body).status_code == 200
        while (counts := internal.get("/internal/state").json()["adapter_counts"])["host_loads"] < 10:
            time.sleep(0.05)  # states are published ten times a second
        assert (counts["host_loads"], counts["host_evictions"]) == (10, 2)
        assert 0 < counts["host_load_seconds"] < 10
