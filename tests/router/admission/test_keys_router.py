"""A router with keys: what is behind them, that engines and memory keep none, and that headers forge nothing."""

import gc
import json
from pathlib import Path

import pytest
from router_support.engine import MockEngine
from router_support.keys import BEARER, SECRET, content, key, post_chat, write
from router_support.raw import connected
from router_support.serving import question, serving

from blade_protocol import headers as names
from blade_router.arguments import Options
from blade_router.router import Router
from blade_router.source_factories import make_keys


async def test_what_is_behind_keys_and_what_is_not(keys_file: Path, engine: MockEngine) -> None:
    async with serving(engine, keys=keys_file) as router:
        assert (await router.chat()).status_code == 401
        assert (await router.client.get("/v1/models")).status_code == 401
        assert (await router.client.post("/tokenize", json={})).status_code == 401
        for path in ("/health", "/live"):
            assert (await router.client.get(path)).status_code == 200
        assert not engine.received
        assert (await router.chat(headers=BEARER)).status_code == 200
        assert (await router.client.get("/v1/models", headers=BEARER)).status_code == 200
        assert await router.metric('blade_router_requests_total{code="401"}') == 3


async def test_a_key_of_low_priority_is_behind_others_at_the_engine(keys_file: Path, engine: MockEngine) -> None:
    write(keys_file, content(key(priority=5)))
    async with serving(engine, keys=keys_file) as router:
        assert (await post_chat(router)).status_code == 200
        assert json.loads(engine.received[0].body)["priority"] == 5


@pytest.mark.parametrize(("allowed", "sent"), [(False, 0), (True, -7)])
async def test_without_keys_a_request_goes_ahead_of_others_only_where_that_is_allowed(
    engine: MockEngine, allowed: bool, sent: int
) -> None:
    async with serving(engine, allow_client_priority=allowed) as router:
        for priority in (-7, 7):
            body = question() | {"priority": priority}
            assert (await router.client.post("/v1/chat/completions", json=body)).status_code == 200
        assert [json.loads(received.body)["priority"] for received in engine.received] == [sent, 7]


async def test_engines_get_no_key(keys_file: Path, engine: MockEngine) -> None:
    async with serving(engine, keys=keys_file) as router:
        await router.chat(headers=BEARER | {"x-api-key": "b", "api-key": "c", "x-kept": "d"})
        (received,) = engine.received
        assert [received.header(name) for name in ("authorization", "x-api-key", "api-key", "x-kept")] == [
            [],
            [],
            [],
            ["d"],
        ]


async def test_without_keys_the_header_is_the_engines(engine: MockEngine) -> None:
    async with serving(engine) as router:
        await router.chat(headers=BEARER)
        assert engine.received[0].header("authorization") == [BEARER["authorization"]]


@pytest.mark.parametrize("framing", [b"content-length: 1000000", b"transfer-encoding: chunked"])
async def test_without_a_key_a_large_body_is_not_read(engine: MockEngine, keys_file: Path, framing: bytes) -> None:
    start = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    async with serving(engine, keys=keys_file) as router, connected(router.port) as client:
        client.send(start + framing + b"\r\n\r\n")
        response = await client.response()
        assert response.status == 401
        assert await client.closed() == b""


OURS = sorted(
    value if value != names.CLIENT_FORBIDDEN_PREFIX else f"{value}anything"
    for name, value in vars(names).items()
    if name.isupper() and value.startswith(names.CLIENT_FORBIDDEN_PREFIX)
)


@pytest.mark.parametrize("header", OURS)
async def test_forged_headers_change_nothing(keys_file: Path, engine: MockEngine, header: str) -> None:
    async with serving(engine, keys=keys_file, policy="round-robin") as router:
        assert (await router.chat(headers={header: SECRET})).status_code == 401
        plain, forged = await router.chat(headers=BEARER), await router.chat(headers=BEARER | {header: "1"})
        assert plain.status_code == forged.status_code == 200
        own = {"x-request-id", "content-length", "date"}
        assert {k: v for k, v in plain.headers.items() if k not in own} == {
            k: v for k, v in forged.headers.items() if k not in own
        }
        kept = [
            sorted((key, value) for key, value in each.headers if key != "x-request-id") for each in engine.received
        ]
        assert kept[0] == kept[1]
        assert (header, "1") not in engine.received[1].headers


def test_no_key_in_plain_stays_in_memory(tmp_path: Path) -> None:
    secret = "".join(("sk-", "remember", "-me-not"))
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{"name": "a", "key": secret}]}))
    keys = make_keys(Options(keys=path))
    router = Router(Options(keys=path))
    gc.collect()
    assert keys is not None
    assert keys.keys is not None
    held = []
    for each in gc.get_objects():
        if type(each) in (dict, list, tuple) and each is not globals():  # others may have side effects
            values = each.values() if type(each) is dict else each
            if any(type(value) is str and value == secret for value in values):
                held.append(each)
    assert [each for each in held if "test_no_key" not in repr(each)[:2000]] == []
    assert secret not in repr(router.admission.keyring.__dict__)
