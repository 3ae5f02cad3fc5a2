"""The files of the web UI: types, compression, caching, and a policy under which no foreign script runs."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from router_support.serving import Running, serving

from blade_router.ui.static_files import CONTENT_POLICY, MOST_BYTES, StaticFiles

SCRIPT = "export const answer = 42; " * 100


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text('<!doctype html><script type="module" src="/ui/assets/a-1.js"></script>')
    (tmp_path / "assets" / "a-1.js").write_text(SCRIPT)
    (tmp_path / ".hidden").write_text("secret")
    return tmp_path


@pytest.fixture
async def router(files: Path) -> AsyncIterator[Running]:
    async with serving(ui_files=files) as running:
        yield running


async def get(router: Running, path: str, **headers: str) -> httpx.Response:
    return await router.client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("path", ["/ui", "/ui/", "/ui/index.html"])
async def test_the_page_is_served_with_its_guards(router: Running, path: str) -> None:
    response = await get(router, path)
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<!doctype html>" in response.text
    assert response.headers["content-security-policy"] == CONTENT_POLICY
    assert "unsafe" not in CONTENT_POLICY
    assert "default-src 'none'" in CONTENT_POLICY
    assert "img-src 'self' blob:;" in CONTENT_POLICY  # thumbnails of files that a user has chosen
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cache-control"] == "no-cache"


async def test_assets_are_compressed_and_kept_by_browsers(router: Running) -> None:
    response = await get(router, "/ui/assets/a-1.js", accept_encoding="br, gzip")
    assert (response.headers["content-encoding"], response.text) == ("gzip", SCRIPT)
    assert int(response.headers["content-length"]) < len(SCRIPT) / 5
    assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert response.headers["vary"] == "accept-encoding"


@pytest.mark.parametrize("coding", ["identity", "gzip;q=0", "br"])
async def test_what_a_client_does_not_take_it_does_not_get(router: Running, coding: str) -> None:
    response = await get(router, "/ui/assets/a-1.js", accept_encoding=coding)
    assert "content-encoding" not in response.headers
    assert response.text == SCRIPT


async def test_an_unchanged_file_is_not_sent_again(router: Running) -> None:
    first = await get(router, "/ui/assets/a-1.js")
    again = await get(router, "/ui/assets/a-1.js", if_none_match=first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    assert (await get(router, "/ui/", if_none_match=first.headers["etag"])).status_code == 200


@pytest.mark.parametrize("path", ["/ui/x.js", "/ui/assets", "/ui/../keys", "/ui/%2e%2e/keys", "/ui/.hidden", "/uix"])
async def test_nothing_else_is_served(router: Running, path: str) -> None:
    request = httpx.Request("GET", router.url + path)
    request.url = httpx.URL(router.url).copy_with(raw_path=path.encode())
    assert (await router.client.send(request)).status_code == 404


async def test_a_browser_is_led_from_the_root_to_the_page(router: Running) -> None:
    response = await get(router, "/", accept="text/html,application/xhtml+xml")
    assert (response.status_code, response.headers["location"]) == (302, "/ui/")
    assert (await get(router, "/", accept="application/json")).status_code == 404


async def test_head_has_no_body_and_other_methods_are_refused(router: Running) -> None:
    head = await router.client.head("/ui/")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 0
    post = await router.client.post("/ui/", content=b"x")
    assert (post.status_code, post.headers["allow"]) == (405, "GET, HEAD")


async def test_without_the_flag_there_is_none_of_it(files: Path) -> None:
    async with serving(ui=False, ui_files=files) as router:
        for path in ("/ui/", "/ui/stream", "/ui/assets/a-1.js", "/"):
            assert (await get(router, path, accept="text/html")).status_code == 404
        assert (await router.admin.post("/internal/service", json={})).status_code == 404
        assert router.router.proxy.recent is None


async def test_a_router_without_built_files_says_what_to_do(tmp_path: Path) -> None:
    async with serving(ui_files=tmp_path) as router:
        response = await get(router, "/ui/")
        assert response.status_code == 404
        assert "make ui" in response.json()["error"]["message"]


def test_files_are_compressed_at_the_start_only_where_that_helps(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_bytes(b"x")
    (tmp_path / "noise.bin").write_bytes(gzip.compress(bytes(range(256)) * 40))
    found = StaticFiles(tmp_path)
    assert len(found) == 2
    assert not any(file.compressed for file in found._files.values())


def test_a_folder_that_is_no_build_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_bytes(b"x")
    with open(tmp_path / "model.bin", "wb") as file:
        file.truncate(MOST_BYTES)
    with pytest.raises(ValueError, match="no build of the web UI"):
        StaticFiles(tmp_path)
