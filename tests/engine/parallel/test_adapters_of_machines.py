"""Adapters of an engine on two machines, real servers: each reads its own files, and what one lacks is refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from engine_support.adapters import targets_of, write_adapter
from engine_support.machine_servers import MODEL_FLAGS, running_machine
from engine_support.rank_servers import refusal
from engine_support.server_process import ServerProcess, running_server, wait_until
from hub_support.fake_hub import FakeHub, running_hub, sha256

from blade_llm.parallel.route import free_port

FIELDS = {"prompt": "hello world", "temperature": 0, "ignore_eos": True, "max_tokens": 8}
WEIGHTS = "adapter_model.safetensors"
LIMITS = ("--enable_lora", "--max_num_seqs", "8", "--max_loras", "2", "--max_cpu_loras", "4")


class Disks:
    """The files of machine 0 and machine 1, which find them by the same path: it leads to where a process runs."""

    def __init__(self, root: Path, model: Path) -> None:
        self.homes = root / "0", root / "1"
        self.shared = root / "adapters"
        self.shared.symlink_to("/proc/self/cwd/adapters")
        self._targets = targets_of(model)
        for seed, name in enumerate(("a", "b")):
            self.write(0, name, seed)
            self.write(1, name, seed)
        self.write(0, "missing", 2)
        self.write(0, "different", 2)
        self.write(1, "different", 3)
        self.write(0, "slow", 2)
        self.write(1, "slow", 2)

    def path(self, name: str) -> str:
        """What requests call it."""
        return str(self.shared / name)

    def write(self, machine: int, name: str, seed: int) -> Path:
        return write_adapter(self.homes[machine] / "adapters" / name, self._targets, seed=seed, size=3.0)

    def use(self, machine: int, patch: pytest.MonkeyPatch) -> None:
        """Let processes that are started run on ``machine``."""
        patch.chdir(self.homes[machine])
        patch.setenv("HF_HOME", str(self.homes[machine] / "cache"))


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Disks:
    return Disks(tmp_path_factory.mktemp("disks"), text_model)


@pytest.fixture(scope="module")
def hub(disks: Disks) -> Iterator[FakeHub]:
    with running_hub() as hub:
        hub.add("acme/first", disks.homes[0] / "adapters" / "a")
        hub.add("acme/second", disks.homes[0] / "adapters" / "b")
        yield hub


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, text_model: Path, disks: Disks) -> dict[str, str]:
    """What one rank says, without adapter and with each."""
    names = {name: str(disks.homes[0] / "adapters" / name) for name in ("a", "b", "missing")}
    flags = (*MODEL_FLAGS, *LIMITS, "--lora_modules", *(f"{name}={path}" for name, path in names.items()))
    with running_server(tmp_path_factory.mktemp("o"), text_model, *flags, engine="real") as server:
        return {"": text(server), **{name: text(server, name) for name in names}}


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, text_model: Path, disks: Disks, hub: FakeHub
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("s")
    machines = ("-tp", "2", "--nnodes", "2", "--dist_init_addr", f"127.0.0.1:{free_port()}")
    adapters = ("--lora_modules", f"first={disks.path('a')}", "downloaded=acme/first")
    flags = (*MODEL_FLAGS, *LIMITS, *adapters, "--lora_allowed_roots", str(disks.homes[0]), *machines)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("HF_ENDPOINT", hub.endpoint)
        patch.setenv("HF_HUB_OFFLINE", "0")
        disks.use(1, patch)
        stack.enter_context(running_machine(folder, text_model, *flags, "--node_rank", "1"))
        disks.use(0, patch)
        yield stack.enter_context(running_server(folder, text_model, *flags, engine="real"))


def text(server: ServerProcess, model: str = "") -> str:
    response = server.post("/v1/completions", **FIELDS, **({"model": model} if model else {}))
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def load(server: ServerProcess, name: str, path: str, *, wait: bool = True) -> httpx.Response:
    body = {"lora_name": name, "lora_path": path, "wait": wait}
    return httpx.post(f"{server.internal_url}/internal/adapters/load", json=body, timeout=120)


def unload(server: ServerProcess, name: str) -> None:
    response = httpx.post(f"{server.internal_url}/internal/adapters/unload", json={"lora_name": name}, timeout=60)
    assert response.status_code == 200, response.text


def state_of(server: ServerProcess, name: str) -> str:
    listed = httpx.get(f"{server.internal_url}/internal/adapters", timeout=60).json()["adapters"]
    return str({each["name"]: each["state"] for each in listed}[name])


def refused(server: ServerProcess, name: str, path: str) -> str:
    response = load(server, name, path)
    assert response.status_code == 404, response.text
    return str(response.json()["error"]["message"])


def downloads(hub: FakeHub, repo: str) -> int:
    """How often the weights of ``repo`` were sent."""
    return len([each for each in hub.asked(sha256(hub.repositories[repo][WEIGHTS])) if each.method == "GET"])


def test_those_of_the_start_and_those_that_come(
    server: ServerProcess, disks: Disks, hub: FakeHub, expected: dict[str, str]
) -> None:
    assert len(set(expected.values())) == 4
    assert text(server) == expected[""]
    assert text(server, "first") == expected["a"]
    assert text(server, "downloaded") == expected["a"]
    assert downloads(hub, "acme/first") == 2  # once by each machine
    assert load(server, "later", disks.path("b")).status_code == 200
    assert load(server, "fetched", "acme/second").status_code == 200
    assert downloads(hub, "acme/second") == 2
    assert text(server, "later") == text(server, "fetched") == expected["b"]
    unload(server, "later")
    unload(server, "fetched")
    assert load(server, "again", "acme/second").status_code == 200
    assert downloads(hub, "acme/second") == 2
    assert text(server, "again") == expected["b"]
    unload(server, "again")


def test_what_a_machine_lacks_or_has_otherwise_is_refused(
    server: ServerProcess, disks: Disks, expected: dict[str, str]
) -> None:
    says = refused(server, "late", disks.path("missing"))
    assert says.startswith(f"machine 1 at 127.0.0.1: rank 1: adapter folder {disks.path('missing')} does not exist")
    assert "same path on every machine" in says
    says = refused(server, "other", disks.path("different"))
    assert says.startswith("machine 1 at 127.0.0.1: rank 1 has read other weights than rank 0")
    assert text(server, "first") == expected["a"]
    disks.write(1, "missing", 2)
    assert load(server, "late", disks.path("missing")).status_code == 200
    assert text(server, "late") == expected["missing"]
    unload(server, "late")


def test_what_only_one_machine_can_download_is_refused(
    server: ServerProcess, disks: Disks, hub: FakeHub, expected: dict[str, str]
) -> None:
    hub.add("acme/third", disks.homes[0] / "adapters" / "b")
    cache = disks.homes[1] / "cache" / "hub" / "models--acme--third"
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_bytes(b"no folder")
    says = refused(server, "third", "acme/third")
    assert says.startswith("machine 1 at 127.0.0.1: rank 1: ")
    assert "acme/third" in says
    cache.unlink()
    assert load(server, "third", "acme/third").status_code == 200
    assert text(server, "third") == expected["b"]
    unload(server, "third")


def test_steps_wait_for_no_disk_of_another_machine(
    server: ServerProcess, disks: Disks, expected: dict[str, str]
) -> None:
    config = disks.homes[1] / "adapters" / "slow" / "adapter_config.json"
    content = config.read_bytes()
    config.unlink()
    os.mkfifo(config)  # whoever opens it waits for a writer
    assert load(server, "slow", disks.path("slow"), wait=False).status_code == 202
    for _ in range(3):
        assert text(server) == expected[""]
        assert text(server, "first") == expected["a"]
    assert state_of(server, "slow") == "loading"
    writing = threading.Thread(target=config.write_bytes, args=(content,))
    writing.start()
    writing.join(30)
    wait_until(lambda: state_of(server, "slow") == "loaded", 60)
    assert text(server, "slow") == expected["missing"]
    unload(server, "slow")


def test_an_adapter_of_the_start_that_a_machine_lacks(
    tmp_path: Path, text_model: Path, disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks.write(0, "start", 2)
    machines = ("-tp", "2", "--nnodes", "2", "--dist_init_addr", f"127.0.0.1:{free_port()}")
    flags = (*MODEL_FLAGS, *machines, *LIMITS, "--lora_modules", f"first={disks.path('start')}")
    disks.use(1, monkeypatch)
    with running_machine(tmp_path, text_model, *flags, "--node_rank", "1") as machine:
        disks.use(0, monkeypatch)
        says = refusal(text_model, *flags)
        assert f"--lora_modules first={disks.path('start')}: machine 1 at 127.0.0.1: rank 1: adapter folder" in says
        assert machine.process.wait(60) == 1
