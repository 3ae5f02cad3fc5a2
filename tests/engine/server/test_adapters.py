"""Adapters through a real server and its real engine: by name, by path, loaded and unloaded while it runs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_support.adapters import targets_of, write_adapter
from engine_support.cut_streams import cut
from engine_support.server_process import ServerProcess, running_server

from blade_llm import LLM, LoRARequest, SamplingParams
from blade_protocol import headers

FLAGS = ("--dtype", "float32", "--kv_cache_bytes", "32MiB", "--max_num_seqs", "8")
FIELDS = {"prompt": "hello world", "temperature": 0, "ignore_eos": True, "max_tokens": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Path:
    """``adapters/{a,b,c}`` that clients may name, and ``outside``."""
    root: Path = tmp_path_factory.mktemp("lora")
    targets = targets_of(text_model)
    for seed, name in enumerate(["adapters/a", "adapters/b", "adapters/c", "outside"]):
        write_adapter(root / name, targets, seed=seed, size=3.0)
    return root


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, text_model: Path, folder: Path) -> Iterator[ServerProcess]:
    flags = (
        *FLAGS,
        *("--enable_lora", "true", "--lora_modules", f"first={folder}/adapters/a"),
        *("--lora_allowed_roots", f"{folder}/adapters", "--allow_runtime_lora_updating", "true"),
    )
    with running_server(tmp_path_factory.mktemp("server"), text_model, *flags, engine="real") as running:
        yield running


def text(server: ServerProcess, model: str = "", **fields: Any) -> str:
    response = server.post("/v1/completions", **FIELDS, **({"model": model} if model else {}), **fields)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def internal(server: ServerProcess, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.internal_url}/internal/adapters/{path}", json=body, timeout=60)


def test_by_name_and_by_path(server: ServerProcess, folder: Path) -> None:
    base, first = text(server), text(server, "first")
    assert base != first
    assert text(server, f"{folder}/adapters/a/") == first
    assert text(server, f"{folder}/adapters/../adapters/b") not in (base, first)
    while f"{folder}/adapters/b" not in server.state()["adapters"]:
        time.sleep(0.01)  # states are published ten times a second
    models = httpx.get(f"{server.url}/v1/models", timeout=10).json()["data"]
    listed = {each["id"]: each.get("parent") for each in models}
    own = next(name for name, parent in listed.items() if parent is None)
    assert listed["first"] == listed[f"{folder}/adapters/a"] == own
    assert httpx.get(f"{server.url}/v1/models/first", timeout=10).json()["parent"] == own
    assert [each["root"] for each in models] == list(listed)  # a benchmark of vLLM's reads it
    assert httpx.get(f"{server.url}/v1/models/nobody", timeout=10).status_code == 404
    assert "first" in server.state()["adapters"]


def test_chats_streams_and_embeddings(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "x"}]
    chats = [
        server.post("/v1/chat/completions", messages=messages, max_tokens=6, temperature=0, **extra).json()
        for extra in ({}, {"model": "first"})
    ]
    assert chats[1]["model"] == "first"
    assert chats[0]["choices"][0]["message"] != chats[1]["choices"][0]["message"]
    streamed = server.post("/v1/completions", **FIELDS, model="first", stream=True)
    pieces = [json.loads(line[6:]) for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == text(server, "first")
    vectors = [server.post("/v1/embeddings", input="x", model=model).json()["data"][0] for model in ("first", None)]
    assert vectors[0]["embedding"] != vectors[1]["embedding"]


def test_the_same_offline(server: ServerProcess, folder: Path, text_model: Path) -> None:
    options: dict[str, Any] = {"load_format": "dummy", "dtype": "float32", "kv_cache_bytes": 32 << 20, "num_threads": 1}
    llm = LLM(text_model, enable_lora=True, **options)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=8)
    adapter = LoRARequest("a", 1, str(folder / "adapters/a"))
    with_it, without = llm.generate(["hello world", "hello world"], params, lora_request=[adapter, None])
    assert with_it.outputs[0].text == text(server, "first")
    assert without.outputs[0].text == text(server)
    with pytest.raises(ValueError, match="unload it first"):
        llm.generate("x", params, lora_request=LoRARequest("a", 1, str(folder / "adapters/b")))
    with pytest.raises(ValueError, match="--enable_lora"):
        LLM(text_model, **options).generate("x", params, lora_request=adapter)


@pytest.mark.parametrize(
    "model", ["nobody", "{folder}/outside", "{folder}/adapters/../outside", "{folder}/adapters/none"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_unknown_models_are_404_before_any_event(server: ServerProcess, folder: Path, model: str, stream: bool) -> None:
    response = server.post("/v1/completions", **FIELDS, model=model.format(folder=folder), stream=stream)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert server.post("/v1/embeddings", input="x", model=model.format(folder=folder)).status_code == 404


def test_clients_load_and_unload(server: ServerProcess, folder: Path) -> None:
    load = server.post("/v1/load_lora_adapter", lora_name="mine", lora_path=f"{folder}/adapters/c")
    assert (load.status_code, load.text) == (200, "Success: LoRA adapter 'mine' added successfully.")
    assert text(server, "mine") != text(server)
    again = server.post("/v1/load_lora_adapter", lora_name="mine", lora_path=f"{folder}/adapters/b")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "adapter_exists")
    outside = server.post("/v1/load_lora_adapter", lora_name="out", lora_path=f"{folder}/outside")
    assert outside.status_code == 400
    assert "--lora_allowed_roots" in outside.json()["error"]["message"]
    assert server.post("/v1/load_lora_adapter", lora_name="x").status_code == 400
    assert server.post("/v1/unload_lora_adapter", lora_name="mine").status_code == 200
    assert server.post("/v1/unload_lora_adapter", lora_name="mine").status_code == 404
    assert server.post("/v1/completions", **FIELDS, model="mine").status_code == 404


def test_the_internal_port_loads_from_anywhere(server: ServerProcess, folder: Path) -> None:
    for _ in range(2):
        listed = internal(server, "load", lora_name="theirs", lora_path=str(folder / "outside")).json()["adapters"]
    (one,) = (each for each in listed if each["name"] == "theirs")
    assert (one["tier"], one["rank"], len(one["digest"])) == ("host", 8, 64)
    assert text(server, "theirs") != text(server)
    listed = httpx.get(f"{server.internal_url}/internal/adapters", timeout=10).json()["adapters"]
    assert {each["name"]: each["tier"] for each in listed}["theirs"] == "device"
    assert internal(server, "load", lora_name="bad", lora_path=str(folder)).status_code == 404
    assert internal(server, "unload", lora_name="theirs").status_code == 200
    assert internal(server, "unload", lora_name="theirs").status_code == 404


def test_the_internal_port_does_not_wait(server: ServerProcess, folder: Path) -> None:
    """A 202 with the adapter, whose end is in the list; a 200 where nothing is left to be done."""
    fields = {"lora_name": "later", "lora_path": str(folder / "outside"), "wait": False, "replace": True}
    first = internal(server, "load", **fields)
    assert (first.status_code, first.json()["name"], first.json()["state"]) == (202, "later", "loading")
    assert until(server, "later", "loaded")["reason"] == ""
    again = internal(server, "load", **fields)
    assert (again.status_code, again.json()["state"]) == (200, "loaded")
    before = text(server, "later")
    bad = internal(server, "load", **{**fields, "lora_path": str(folder)})
    assert (bad.status_code, bad.json()["path"]) == (202, str(folder / "outside"))
    while not (one := until(server, "later", "loaded"))["reason"]:
        time.sleep(0.01)
    assert "adapter_config.json" in one["reason"]
    assert text(server, "later") == before
    assert internal(server, "load", **{**fields, "lora_name": "never", "lora_path": str(folder)}).status_code == 202
    assert "adapter_config.json" in until(server, "never", "failed")["reason"]
    answer = server.post("/v1/completions", **FIELDS, model="never")
    assert (answer.status_code, "adapter_config.json" in answer.json()["error"]["message"]) == (404, True)
    for name in ("later", "never"):
        assert internal(server, "unload", lora_name=name).status_code == 200


def test_a_registered_adapter_answers(server: ServerProcess, folder: Path) -> None:
    listed = internal(server, "load", lora_name="cold", lora_path=str(folder / "outside"), register_only=True)
    (one,) = (each for each in listed.json()["adapters"] if each["name"] == "cold")
    assert (one["state"], one["tier"], one["rank"]) == ("registered", "disk", 8)
    models = httpx.get(f"{server.url}/v1/models", timeout=10).json()["data"]
    assert "cold" in {each["id"] for each in models}
    assert text(server, "cold") != text(server)
    place = server.state()["adapters"].index("cold")
    while (state := server.state())["adapter_tiers"][place] != "device":
        time.sleep(0.01)
    assert len(state["adapter_digests"][place]) == 64
    assert state["max_adapters"] == 32
    assert internal(server, "unload", lora_name="cold").status_code == 200


def test_a_stream_of_a_cold_adapter_is_resumed_by_another_cold_one(server: ServerProcess, folder: Path) -> None:
    """Neither engine had read the adapter's weights when the request came."""

    def register() -> None:
        fields = {"lora_name": "stream", "lora_path": str(folder / "outside"), "register_only": True}
        assert internal(server, "load", **fields).status_code == 200
        assert "stream" in server.state()["adapters"]

    def unload() -> None:
        assert internal(server, "unload", lora_name="stream").status_code == 200
        assert "stream" not in server.state()["adapters"]

    register()
    whole = cut(server, "/v1/completions", 7, **{**FIELDS, "max_tokens": 64}, model="stream")
    assert len(whole.groups) > 1  # a group has what the server found ready: often more than one token
    unload()
    register()
    assert streamed_text(whole.resumed(server, len(whole.groups) // 2)) == streamed_text(whole.data)
    unload()


def test_streams_go_on_while_their_adapter_is_replaced(server: ServerProcess, folder: Path) -> None:
    """As a router requests them: each begins, with either content, and its digest says with which."""

    def put(place: str) -> None:
        fields = {"lora_name": "changing", "lora_path": str(folder / place), "wait": False, "replace": True}
        assert internal(server, "load", **fields).status_code in (200, 202)
        while until(server, "changing", "loaded")["path"] != str(folder / place):
            time.sleep(0.001)

    def stream_until_replaced() -> set[tuple[str, str]]:
        found = set()
        while not replaced.is_set():
            stream = cut(server, "/v1/completions", 7, **FIELDS, model="changing")
            found.add((streamed_text(stream.data), stream.headers[headers.PROMPT_DIGEST]))
        return found

    put("outside")
    outside = text(server, "changing")
    replaced = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        users = [pool.submit(stream_until_replaced) for _ in range(3)]
        try:
            for place in ("adapters/a", "outside") * 4:
                put(place)
                time.sleep(0.1)
        finally:
            replaced.set()
        seen = set[tuple[str, str]]().union(*(user.result() for user in users))
    assert {said for said, _ in seen} == {outside, text(server, "first")}
    assert len({digest for _, digest in seen}) == len(seen) == 2
    assert internal(server, "unload", lora_name="changing").status_code == 200


def streamed_text(stream: bytes) -> str:
    """The text of all events; how many tokens each of them has depends on the moment."""
    events = [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith(b"data: {")]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def until(server: ServerProcess, name: str, state: str) -> dict[str, Any]:
    """What the list says of an adapter once it has this state."""
    for _ in range(1000):
        listed = httpx.get(f"{server.internal_url}/internal/adapters", timeout=10).json()["adapters"]
        (one,) = (each for each in listed if each["name"] == name)
        if one["state"] == state:
            return dict(one)
        time.sleep(0.01)
    raise AssertionError(one)


def test_a_server_without_adapters(tmp_path: Path, text_model: Path, folder: Path) -> None:
    with running_server(tmp_path, text_model, *FLAGS, engine="real") as plain:
        assert plain.post("/v1/completions", **FIELDS, model=f"{folder}/adapters/a").status_code == 404
        refused = plain.post("/v1/load_lora_adapter", lora_name="a", lora_path=f"{folder}/adapters/a")
        assert refused.status_code == 404
        assert "--allow_runtime_lora_updating" in refused.json()["error"]["message"]
        assert internal(plain, "load", lora_name="a", lora_path="x").status_code == 400
