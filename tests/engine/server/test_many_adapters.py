"""A thousand registered adapters on a real server: none is read, and the list of models comes at once."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import psutil
from engine_support.adapters import targets_of, write_adapter
from engine_support.server_process import running_server

COUNT = 1000
FLAGS = ("--dtype", "float32", "--kv_cache_bytes", "32MiB", "--enable_lora", "true", "--max_cpu_loras", "8")


def test_a_thousand_registered_adapters(tmp_path: Path, text_model: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", targets_of(text_model))
    (tmp_path / "server").mkdir()
    with (
        running_server(tmp_path / "server", text_model, *FLAGS, engine="real") as server,
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
        seconds = []
        for _ in range(10):
            started = time.perf_counter()
            models = public.get("/v1/models").json()["data"]
            seconds.append(time.perf_counter() - started)
        assert len(models) == COUNT + 1
        assert min(seconds) < 0.05
        for number in range(0, COUNT, 100):
            body = {"model": f"n{number}", "prompt": "x", "max_tokens": 2, "ignore_eos": True}
            assert public.post("/v1/completions", json=body).status_code == 200
        time.sleep(0.3)  # states are published ten times a second
        counts = internal.get("/internal/state").json()["adapter_counts"]
        assert (counts["host_loads"], counts["host_evictions"]) == (10, 2)
        print(f"memory {(memory() - before) >> 10} KiB, /v1/models {min(seconds) * 1000:.1f} ms")
