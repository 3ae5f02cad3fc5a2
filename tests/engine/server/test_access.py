"""Who may use an engine's ports: not whoever goes around the router, nor a page in a browser on the same machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from engine_support.server_process import ServerProcess, running_server
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from blade_llm.cli.server import StartError, _host, _token_file
from blade_llm.server.http.access import AccessControl, AccessRules, allowed_hosts
from blade_protocol import environment, headers, paths

BODY = b'{"prompt": "x", "max_tokens": 1}'
JSON = {"content-type": "application/json"}


async def served(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers 200 to everything."""
    await PlainTextResponse("ok")(scope, receive, send)


def respond(rules: AccessRules, path: str = paths.COMPLETIONS, **given: str) -> httpx.Response:
    async def request() -> httpx.Response:
        app = AccessControl(served, rules, rules.read_token())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1") as client:
            return await client.get(path, headers={name.replace("_", "-"): value for name, value in given.items()})

    return asyncio.run(request())


LOOPBACK = AccessRules(allowed_hosts=allowed_hosts("127.0.0.1", "me.local", None), refuse_origins=True)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8081", 200),
        ("LOCALHOST.:8081", 200),
        ("127.0.0.1", 200),
        ("[::1]:8081", 200),
        ("me.local:1", 200),
        ("evil.example:8081", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::2]:8081", 403),
        ("169.254.169.254", 403),
    ],
)
def test_on_loopback_only_names_of_this_machine_are_served(host: str, status: int) -> None:
    response = respond(LOOPBACK, host=host)
    assert response.status_code == status
    assert status == 200 or "--allowed_hosts" in response.json()["error"]["message"]


def test_allowed_hosts_widen_loopback_and_narrow_the_rest() -> None:
    assert allowed_hosts("0.0.0.0", "0.0.0.0", None) is None, "a pod's clients know it by any name"
    assert allowed_hosts("127.0.0.1", "127.0.0.1", ["*"]) is None
    assert "llm.example" in (allowed_hosts("::1", "::1", ["llm.example"]) or ())
    narrowed = AccessRules(allowed_hosts=allowed_hosts("10.0.0.7", "10.0.0.7", ["llm.example"]))
    assert respond(narrowed, host="llm.example").status_code == 200
    assert respond(narrowed, host="other.example").status_code == 403


def test_probes_need_neither_a_name_nor_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    rules = AccessRules(token_file=str(tmp_path / "token"), allowed_hosts=("localhost",))
    for path in (paths.HEALTH, paths.READY, paths.LIVE, paths.METRICS, paths.METRIC):
        assert respond(rules, path, host="10.0.0.7:8081").status_code == 200
    for path in (paths.MODELS, paths.VERSION, paths.OPENAPI, paths.DOCS, paths.COMPLETIONS, "/nothing"):
        assert respond(rules, path, host="localhost").status_code == 401
        assert respond(rules, path, host="localhost", x_blade_internal_token="s3cret").status_code == 200


def test_a_port_for_programs_refuses_pages() -> None:
    assert respond(LOOPBACK).status_code == 200
    for origin in ("null", "https://evil.example", "http://localhost:8081"):
        assert respond(LOOPBACK, origin=origin).status_code == 403


def test_of_two_tokens_one_must_be_right(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("new")
    rules = AccessRules(token_file=str(tmp_path / "token"))

    async def status(*tokens: str) -> int:
        app = AccessControl(served, rules, rules.read_token())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
            given = [(headers.INTERNAL_TOKEN, token) for token in tokens]
            return (await client.get(paths.MODELS, headers=given)).status_code

    assert asyncio.run(status("new", "old")) == asyncio.run(status("old", "new")) == 200
    assert asyncio.run(status("old", "older")) == asyncio.run(status("new, old")) == 401


def test_the_image_opens_the_port_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.HOST, raising=False)
    assert _host({"host": None}) == "127.0.0.1"
    monkeypatch.setenv(environment.HOST, "0.0.0.0")
    assert _host({"host": None}) == "0.0.0.0"
    assert _host({"host": "::1"}) == "::1"


def test_no_start_with_a_required_token_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.INTERNAL_TOKEN_FILE, raising=False)
    monkeypatch.setenv(environment.PUBLIC_TOKEN, "1")
    with pytest.raises(StartError, match=environment.INTERNAL_TOKEN_FILE):
        _token_file()


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/vnd.api+json", 200),
        (None, 415),
        ("", 415),
        ("text/plain", 415),
        ("text/plain; x=application/json", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
def test_a_body_is_json_and_says_so(server: ServerProcess, content_type: str | None, status: int) -> None:
    given = {} if content_type is None else {"content-type": content_type}
    response = httpx.post(f"{server.url}{paths.COMPLETIONS}", content=BODY, headers=given)
    assert response.status_code == status
    if status == 415:
        assert "-H 'content-type: application/json'" in response.json()["error"]["message"]


def test_a_server_on_loopback(server: ServerProcess) -> None:
    rebound = {"host": "evil.example"}
    assert httpx.get(f"{server.url}/v1/models", headers=rebound).status_code == 403
    assert httpx.get(f"{server.internal_url}/internal/state", headers=rebound).status_code == 403
    page = {"origin": "http://evil.example"}
    assert httpx.post(f"{server.internal_url}/internal/drain", headers=page).status_code == 403
    assert not server.state()["draining"]


def test_a_rendered_engine_serves_its_router_alone(
    tmp_path: Path, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(tmp_path / "token"))
    monkeypatch.setenv(environment.PUBLIC_TOKEN, "1")
    with running_server(tmp_path, text_model, "--api_server_count", "2") as server:
        url = f"{server.url}{paths.COMPLETIONS}"
        for _ in range(8):  # a connection each, so that both processes get some
            refused = httpx.post(url, content=BODY, headers=JSON)
            assert refused.status_code == 401
            assert "router" in refused.json()["error"]["message"]
            assert refused.headers[headers.REQUEST_ID]
            assert httpx.post(url, content=BODY, headers=JSON | {headers.INTERNAL_TOKEN: "s3cret"}).status_code == 200
            assert httpx.get(f"{server.url}/health").status_code == 200
