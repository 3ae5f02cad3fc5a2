"""Prefix caches of keys: each has its own part of them, by a salt that the router puts into the body."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from router_support.engine import MockEngine
from router_support.keys import content, key, post_chat, write
from router_support.requests import request
from router_support.serving import Running, serving

from blade_protocol.routing import EndpointConfig, EngineKind, ModelConfig, RouterConfig
from blade_router.admission.keys import Key
from blade_router.request.models import Target, prepare
from blade_router.request.request import ClientRequest

LONG = "All work and no play makes Jack a dull boy. " * 40
TARGET = Target("")


def salted(salt: str = "s", path: str = "/v1/chat/completions", target: Target = TARGET, **body: Any) -> ClientRequest:
    asked = request(path, **body)
    prepare(asked, target, None, salt=salt)
    return asked


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    write(path, content(key("one", "secret-1"), key("two", "secret-2")))
    return path


async def salts(router: Running, engine: MockEngine, **body: Any) -> list[Any]:
    """The salts that the engine gets of the first key, the first again, and the second."""
    before = len(engine.received)
    for secret in ("secret-1", "secret-1", "secret-2"):
        assert (await post_chat(router, secret, **body)).status_code == 200
    return [json.loads(each.body).get("cache_salt") for each in engine.received[before:]]


@pytest.mark.parametrize("kind", ["blade", "vllm", "sglang"])
@pytest.mark.parametrize("own", [{}, {"cache_salt": "mine"}, {"cache_salt": None}, {"cache_salt": 5}])
async def test_each_key_has_a_salt_of_its_own(keys_file: Path, kind: EngineKind, own: dict[str, Any]) -> None:
    async with MockEngine("a") as engine:
        endpoint = EndpointConfig(url=engine.url, name="a", engine=kind)
        async with serving(endpoints=(endpoint,), wait=False, keys=keys_file) as router:
            for secret in ("secret-1", "secret-1", "secret-2"):
                assert (await post_chat(router, secret, **own)).status_code == 200
            found = [json.loads(each.body)["cache_salt"] for each in engine.received if each.method == "POST"]
    assert found[0] == found[1] != found[2]
    assert all(isinstance(each, str) and len(each) == 32 for each in found)
    assert "mine" not in found


async def test_keys_share_where_the_configuration_says_so(keys_file: Path, tmp_path: Path) -> None:
    config = tmp_path / "router.json"
    config.write_bytes(msgspec.json.encode(RouterConfig(share_prefix_cache=True)))
    async with MockEngine("a") as engine, serving(engine, keys=keys_file, config=config) as router:
        assert await salts(router, engine) == [None, None, None]
        assert await salts(router, engine, cache_salt="mine") == ["mine"] * 3


async def test_without_keys_a_body_stays_as_it_is() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        await router.chat()
    assert b"cache_salt" not in engine.received[0].body


async def test_the_prefix_index_counts_what_the_engine_has_for_this_key(keys_file: Path) -> None:
    async with MockEngine("a") as engine, serving(engine, keys=keys_file, debug_routes=True) as router:
        body = {"messages": [{"role": "user", "content": LONG}]}
        reasons = [
            (await post_chat(router, secret, **body)).headers["x-blade-route-reason"].split()[1]
            for secret in ("secret-1", "secret-1", "secret-2")
        ]
    assert reasons == ["prefix=0/6", "prefix=6/6", "prefix=0/6"]


def test_a_salt_is_that_of_the_name_and_of_nothing_else() -> None:
    first, replaced, other = Key("one", b"a"), Key("one", b"b"), Key("two", b"a")
    assert first.cache_salt == replaced.cache_salt != other.cache_salt


def test_clients_cannot_take_the_salt_of_another_key() -> None:
    stolen = salted("s", model="m", messages=[]).fields.cache_salt
    assert stolen == "s"
    assert salted("other", model="m", messages=[], cache_salt="s").fields.cache_salt not in ("s", "other")
    ours, same = (salted("s", model="m", messages=[], cache_salt="mine") for _ in range(2))
    assert ours.fields.cache_salt == same.fields.cache_salt == json.loads(ours.body)["cache_salt"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"model": "m", "messages": [{"role": "user", "content": "a"}]},
        {"model": "alias", "tools": [{"cache_salt": "x", "model": "alias"}], "cache_salt": "x"},
        {"cache_salt": "", "prompt": '{"cache_salt":"x"}'},
        {"x": "a" * (2 << 20), "model": "alias", "cache_salt": "x"},
    ],
)
async def test_nothing_else_of_a_body_changes(body: dict[str, Any]) -> None:
    asked = salted(target=Target("", ModelConfig(name="m", aliases=("alias",))), **body)
    new = json.loads(asked.body)
    assert new.pop("cache_salt") == asked.fields.cache_salt
    assert new == {name: value for name, value in body.items() if name != "cache_salt"} | (
        {"model": "m"} if "model" in body else {}
    )


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/models"])
def test_what_computes_no_prompt_has_no_salt(path: str) -> None:
    assert b"cache_salt" not in salted(path=path, model="m").body


async def test_a_prompt_that_cannot_be_kept_apart_is_refused(keys_file: Path) -> None:
    headers = {"authorization": "Bearer secret-1"}
    async with MockEngine("a") as engine:
        endpoint = EndpointConfig(url=engine.url, name="a", engine="vllm")
        async with serving(endpoints=(endpoint,), wait=False, keys=keys_file) as router:
            response = await router.client.post("/v1/messages", json={"model": "m", "messages": []}, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "prefix_cache_not_shared")
