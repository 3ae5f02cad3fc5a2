"""A real server whose engine is two processes serves adapters as one does, also those that come while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from engine_support.adapters import targets_of, write_adapter
from engine_support.server_process import ServerProcess, running_server, wait_until

from blade_llm import LLM, LoRARequest, SamplingParams

LIMITS = ("--kv_cache_bytes", "32MiB", "--max_num_seqs", "8", "--max_loras", "1", "--max_cpu_loras", "2")
FIELDS = {"prompt": "hello world", "temperature": 0, "ignore_eos": True, "max_tokens": 8}
NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Path:
    root: Path = tmp_path_factory.mktemp("lora")
    for seed, name in enumerate(NAMES):
        write_adapter(root / name, targets_of(text_model), seed=seed, size=3.0)
    return root


def served(folder: Path, model: Path, root: Path, *flags: str) -> tuple[Path, Path, tuple[str, ...]]:
    ours = ("--enable_lora", "--lora_modules", f"first={root}/a", "--lora_allowed_roots", str(root), *LIMITS, *flags)
    return folder, model, (*ours, "--allow_runtime_lora_updating")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, text_model: Path, root: Path) -> dict[str, str]:
    """What one rank says, without adapter and with each."""
    folder, model, flags = served(tmp_path_factory.mktemp("o"), text_model, root, "--dtype", "float32")
    with running_server(folder, model, *flags, engine="real") as server:
        return {"": text(server), **{name: text(server, str(root / name)) for name in NAMES}}


@pytest.fixture(scope="module", params=["-tp", "-pp"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, text_model: Path, root: Path
) -> Iterator[ServerProcess]:
    ranks = request.param, "2"
    folder, model, flags = served(tmp_path_factory.mktemp("s"), text_model, root, *ranks, "--dtype", "float32")
    with running_server(folder, model, *flags, engine="real") as running:
        yield running


def text(server: ServerProcess, model: str = "") -> str:
    response = server.post("/v1/completions", **FIELDS, **({"model": model} if model else {}))
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def test_by_name_and_by_path(server: ServerProcess, root: Path, expected: dict[str, str]) -> None:
    """One slot, and room for one beside the pinned one: each request needs another adapter than the last."""
    assert len(set(expected.values())) == 4
    for _ in range(2):
        assert text(server) == expected[""]
        assert text(server, "first") == expected["a"]
        assert text(server, str(root / "b")) == expected["b"]
        assert text(server, str(root / "c")) == expected["c"]
    assert server.state()["adapter_counts"]["host_evictions"] > 0


def test_requests_at_once(server: ServerProcess, root: Path, expected: dict[str, str]) -> None:
    """Steps go on while adapters come and go; each request gets its own adapter's answer."""
    models = [("", ""), ("a", "first"), ("b", str(root / "b")), ("c", str(root / "c"))] * 12
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: text(server, each[1]), models))
    assert found == [expected[name] for name, _ in models]


def test_clients_load_and_unload(server: ServerProcess, root: Path, expected: dict[str, str]) -> None:
    for name in ("b", "c", "b"):
        load = server.post("/v1/load_lora_adapter", lora_name="mine", lora_path=str(root / name))
        assert load.status_code == 200, load.text
        assert text(server, "mine") == expected[name]
        assert server.post("/v1/unload_lora_adapter", lora_name="mine").status_code == 200
        assert server.post("/v1/completions", **FIELDS, model="mine").status_code == 404
    assert text(server, "first") == expected["a"]


def test_what_cannot_be_read_harms_nothing(
    server: ServerProcess, root: Path, text_model: Path, expected: dict[str, str]
) -> None:
    broken = write_adapter(root / "broken", targets_of(text_model))
    (broken / "adapter_model.safetensors").write_bytes(b"short")
    load = server.post("/v1/load_lora_adapter", lora_name="broken", lora_path=str(broken))
    assert load.status_code == 404
    assert "adapter_model.safetensors" in load.json()["error"]["message"]
    write_adapter(broken, targets_of(text_model), seed=1, size=3.0)
    assert server.post("/v1/load_lora_adapter", lora_name="broken", lora_path=str(broken)).status_code == 200
    assert text(server, "broken") == expected["b"]
    assert server.post("/v1/unload_lora_adapter", lora_name="broken").status_code == 200


def test_replacing_what_is_served(server: ServerProcess, root: Path, expected: dict[str, str]) -> None:
    def load(name: str) -> None:
        body = {"lora_name": "mine", "lora_path": str(root / name), "replace": True}
        response = httpx.post(f"{server.internal_url}/internal/adapters/load", json=body, timeout=60)
        assert response.status_code == 200, response.text

    for name in ("b", "c"):
        load(name)
        assert text(server, "mine") == expected[name]
    assert server.post("/v1/unload_lora_adapter", lora_name="mine").status_code == 200


def test_a_rank_that_is_late_is_waited_for(server: ServerProcess, root: Path, expected: dict[str, str]) -> None:
    """Rank 0 does not say that it has an adapter before the others have it. All of it within the three seconds after
    which a rank that is stopped counts as lost, so over one connection."""
    (rank,) = psutil.Process(server.engine_pid).children()
    with httpx.Client(base_url=server.internal_url, timeout=60) as client:
        rank.suspend()
        try:
            body = {"lora_name": "late", "lora_path": str(root / "b"), "wait": False}
            assert client.post("/internal/adapters/load", json=body).status_code == 202
            for _ in range(50):
                listed = client.get("/internal/adapters").json()["adapters"]
                assert {each["name"]: each["state"] for each in listed}["late"] == "loading"
        finally:
            rank.resume()
    wait_until(lambda: "late" in server.state()["adapters"])
    assert text(server, "late") == expected["b"]
    assert server.post("/v1/unload_lora_adapter", lora_name="late").status_code == 200


def test_offline(text_model: Path, root: Path, expected: dict[str, str]) -> None:
    options: dict[str, Any] = {"load_format": "dummy", "dtype": "float32", "kv_cache_bytes": 32 << 20, "num_threads": 1}
    llm = LLM(text_model, enable_lora=True, tensor_parallel_size=2, **options)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=8)
    adapters = [LoRARequest(name, number, str(root / name)) for number, name in enumerate(NAMES, 1)]
    results = llm.generate(["hello world"] * 4, params, lora_request=[*adapters, None])
    assert [each.outputs[0].text for each in results] == [*(expected[name] for name in NAMES), expected[""]]
