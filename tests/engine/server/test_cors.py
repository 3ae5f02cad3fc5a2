"""Which pages may read an engine's responses from a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from engine_support.server_process import ServerProcess, running_server

PAGE, OTHER = "https://chat.example.com", "https://evil.example"
MODELS, CHAT = "/v1/models", "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "nobody_knows": 1}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Iterator[ServerProcess]:
    flags = ("--allowed_origins", "https://Chat.example.com", "http://localhost:3000")
    with running_server(tmp_path_factory.mktemp("opened"), text_model, *flags) as process:
        yield process


def preflight(server: ServerProcess, origin: str, path: str = CHAT) -> httpx.Response:
    wanted = {"access-control-request-method": "POST", "access-control-request-headers": "content-type,authorization"}
    return httpx.options(f"{server.url}{path}", headers={"origin": origin, **wanted})


def test_a_preflight(opened: ServerProcess) -> None:
    response = preflight(opened, PAGE)
    assert response.status_code == 204
    assert response.content == b""
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["access-control-allow-headers"] == "content-type,authorization"
    assert response.headers["access-control-allow-methods"] == "GET, POST, DELETE"
    assert response.headers["vary"] == "origin"
    assert preflight(opened, "http://localhost:3000").headers["access-control-allow-origin"] == "http://localhost:3000"


def test_a_page_that_is_not_allowed(opened: ServerProcess) -> None:
    for origin in (OTHER, "http://localhost:3001", "null", f"{PAGE}.evil.example"):
        assert "access-control-allow-origin" not in preflight(opened, origin).headers
        read = httpx.get(f"{opened.url}{MODELS}", headers={"origin": origin})
        assert "access-control-allow-origin" not in read.headers


@pytest.mark.parametrize("stream", [False, True])
def test_responses_and_what_a_page_may_read_of_them(opened: ServerProcess, stream: bool) -> None:
    response = httpx.post(f"{opened.url}{CHAT}", json={**BODY, "stream": stream}, headers={"origin": PAGE})
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == PAGE
    exposed = response.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "x-blade-ignored", "x-blade-unheld", "retry-after"} <= {*exposed}
    assert response.headers["x-blade-ignored"] == "nobody_knows"
    refused = httpx.post(f"{opened.url}{CHAT}", json={}, headers={"origin": PAGE})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (400, PAGE)
    missing = httpx.get(f"{opened.url}/nothing", headers={"origin": PAGE})
    assert (missing.status_code, missing.headers["access-control-allow-origin"]) == (404, PAGE)
    assert "access-control-allow-origin" not in httpx.get(f"{opened.url}{MODELS}").headers


def test_off_by_default(server: ServerProcess) -> None:
    assert preflight(server, PAGE).status_code == 405
    assert "access-control-allow-origin" not in httpx.get(f"{server.url}{MODELS}", headers={"origin": PAGE}).headers


def test_the_internal_port_stays_closed(opened: ServerProcess) -> None:
    response = httpx.get(f"{opened.internal_url}/internal/state", headers={"origin": PAGE})
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


def test_any_page(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model, "--allowed_origins", '["*"]') as process:
        assert preflight(process, OTHER).headers["access-control-allow-origin"] == "*"
        read = httpx.get(f"{process.url}{MODELS}", headers={"origin": OTHER})
        assert read.headers["access-control-allow-origin"] == "*"
