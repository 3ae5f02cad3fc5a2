"""HTTP as clients expect it: paths as people type them, HEAD, Allow, Date, and CORS on refusals too."""

import email.utils
import json
import time
from pathlib import Path
from typing import Any

import pytest
from router_support.engine import MockEngine
from router_support.raw import BODY, HOST, connected, get, post
from router_support.serving import serving

ORIGIN = b"origin: https://chat.example.com"


def cors(folder: Path, **more: Any) -> Path:
    path = folder / "router.json"
    path.write_text(json.dumps({"cors_origins": ["https://chat.example.com"], **more}))
    return path


@pytest.mark.parametrize(
    ("typed", "forwarded"),
    [
        ("/v1/models/", "/v1/models"),
        ("//v1/models", "/v1/models"),
        ("///v1/models//", "/v1/models"),
        ("//v1/models/?a=b", "/v1/models?a=b"),
        ("/v1/models/org/name", "/v1/models/org/name"),
        ("/v1/models/org/name/", "/v1/models/org/name"),
        ("//v1/models/org%2Fname/", "/v1/models/org%2Fname"),
        ("http://router:8080/v1/models", "/v1/models"),
        ("HTTPS://router//v1/models/", "/v1/models"),
        ("//version/", "/version"),
    ],
)
async def test_paths_as_people_type_them(typed: str, forwarded: str) -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(get(typed.encode()))
        response = await client.response()
        assert (response.status, response.header("location")) == (200, None)
        assert [each.target for each in engine.received] == [forwarded]


@pytest.mark.parametrize(
    ("typed", "status"),
    [
        *(
            (path, 404)
            for path in ("/models", "/v1", "/v1/", "//", "http://router", "/v1/chat", "http://router/metrics")
        ),
        *((path, 400) for path in ("/v1//models", "/v1/models//name", "/v1/models/../metrics")),
    ],
)
async def test_what_is_not_there_is_an_openai_error_and_no_redirect(typed: str, status: int) -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(get(typed.encode()))
        response = await client.response()
        assert (response.status, response.header("location")) == (status, None)
        assert response.error["message"]
        assert engine.received == []


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/org/name", "/version", "/docs", "/health", "/live", "/ping"]
)
async def test_head_is_what_get_is_without_the_body(path: str) -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(get(path.encode()))
        whole = await client.response()
        client.send(get(path.encode(), method=b"HEAD"))
        head = await client.response(bodiless=True)
        assert (head.status, head.header("content-length")) == (whole.status, str(len(whole.body)))
        client.send(get(b"/live"))
        assert (await client.response()).body == b'{"status":"ok"}', "no byte of a body was sent in between"
        assert {each.method for each in engine.received} <= {"GET"}, "not all engines know HEAD"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", {"POST"}),
        ("HEAD", "/v1/completions", {"POST"}),
        ("PUT", "/v1/models", {"GET", "HEAD"}),
        ("OPTIONS", "/v1/models/org/name", {"GET", "HEAD"}),
        ("PATCH", "/v1/responses/resp_1", {"GET", "HEAD", "DELETE"}),
        ("PUT", "/health", {"GET"}),
    ],
)
async def test_a_405_says_what_is_allowed(method: str, path: str, allowed: set[str]) -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(get(path.encode(), method=method.encode()))
        response = await client.response(bodiless=method == "HEAD")
        assert response.status == 405
        assert set((response.header("allow") or "").split(", ")) == allowed
        assert engine.received == []


async def test_ping_and_load() -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        for request in (get(b"/ping"), post(b"", path=b"/ping"), post(path=b"/ping/")):
            client.send(request)
            response = await client.response()
            assert (response.status, json.loads(response.body)["status"]) == (200, "ok")
        assert (await router.client.get("/load")).status_code == 404, "how much there is to do shows the inside"
        assert (await router.admin.get("/load")).json() == {"server_load": 0}


async def test_every_response_has_one_date() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        requests = (get(b"/live"), get(), get(b"/nothing"), post(), b"GET / HTTP/1.1\r\n\r\n", post(BODY, b"expect: x"))
        for request in requests:
            async with connected(router.port) as client:
                client.send(request)
                response = await client.response()
                dates = [value for name, value in response.headers if name == "date"]
                assert len(dates) == 1, request
                assert abs(email.utils.parsedate_to_datetime(dates[0]).timestamp() - time.time()) < 60


async def test_early_refusals_have_cors_headers(tmp_path: Path) -> None:
    """A page that may not read an error shows its user "network error"."""
    limits = {"limits": {"requests_per_minute": 1}}
    async with MockEngine("a") as engine:
        async with serving(engine, config=cors(tmp_path, **limits), max_body_bytes=1000) as router:
            announced = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"%b\r\ncontent-length: 1001\r\n\r\n" % ORIGIN
            for request, status in (
                (post(BODY, ORIGIN), 200),
                (post(BODY, ORIGIN), 429),
                (announced, 413),
                (get(b"/nothing", ORIGIN), 404),
                (get(b"/v1/nothing", ORIGIN), 404),
                (get(b"/v1/models", ORIGIN, method=b"PUT"), 405),
                (post(BODY, ORIGIN, b"content-encoding: gzip"), 415),
                (post(b"{", ORIGIN), 400),
                (post(BODY, ORIGIN, b"expect: much"), 417),
                (get(b"/live", ORIGIN, b"host: two"), 400),
            ):
                async with connected(router.port) as client:
                    client.send(request)
                    response = await client.response()
                    assert response.status == status
                    assert response.header("access-control-allow-origin") == "https://chat.example.com", status
                    client.send(request)


async def test_a_refusal_has_no_cors_headers_of_an_earlier_request(tmp_path: Path) -> None:
    async with MockEngine("a") as engine, serving(engine, config=cors(tmp_path)) as router:
        async with connected(router.port) as client:
            client.send(get(b"/live", ORIGIN))
            assert (await client.response()).header("access-control-allow-origin")
            client.send(b"\x00nonsense\r\n\r\n")
            response = await client.response()
            assert (response.status, response.header("access-control-allow-origin")) == (400, None)
