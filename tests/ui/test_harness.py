"""What finds faults in pages finds them: tests of the tests, on pages made for it."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from ui_support.accessibility import barriers
from ui_support.layout import misfits
from ui_support.picture import ink, screenshot
from ui_support.watched import Open

GOOD = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,"><title>A page</title><main><h1>A page</h1>
<p>Some words, <a href="/other">a link</a>.</p><ul><li>one<li>two<li>three</ul><button>Press</button></main>"""

Serve = tuple[str, Path]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""

    def end_headers(self) -> None:
        self.send_header("content-security-policy", "script-src 'self'")
        super().end_headers()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serve]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", tmp_path
        server.shutdown()
        thread.join()


def write(served: Serve, body: str, script: str = "") -> str:
    origin, folder = served
    (folder / "page.html").write_text(body + ('<script src="/page.js"></script>' if script else ""))
    (folder / "page.js").write_text(script)
    return origin


def test_a_good_page_has_no_fault(served: Serve, context: Open, browser: Browser) -> None:
    page = context(write(served, GOOD, "document.title += '.'"), width=380, height=400).page("/page.html")
    assert misfits(page) == []
    assert not ink(browser, screenshot(page)).empty


@pytest.mark.parametrize("body", ["", "<p>Loading", '<div style="background: navy; height: 100vh">'])
def test_an_empty_page_is_empty(body: str, served: Serve, context: Open, browser: Browser) -> None:
    page = context(write(served, f'<link rel="icon" href="data:,">{body}')).page("/page.html")
    assert ink(browser, screenshot(page)).empty


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('<pre style="width: 500px">wide</pre>', "the page is 5"),
        ('<div style="position: fixed; left: 370px; width: 50px; height: 9px">', '<div> "" reaches from 370 to 420'),
        ('<button style="width: 40px; overflow: hidden; white-space: nowrap">far too long</button>', "px more width"),
        ('<button style="height: 12px; width: 60px; overflow: hidden">two lines of it</button>', "px more height"),
    ],
)
def test_a_misfit_is_found(body: str, found: str, served: Serve, context: Open) -> None:
    page = context(write(served, GOOD + body), width=380).page("/page.html")
    assert found in "\n".join(misfits(page))


def test_what_scrolls_by_itself_fits(served: Serve, context: Open) -> None:
    inside = '<div style="overflow-x: auto; width: 100px"><pre style="width: 500px">wide</pre></div>'
    page = context(write(served, GOOD + inside), width=380).page("/page.html")
    assert misfits(page) == []


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("console.error('bad thing')", r"console error: bad thing"),
        ("setTimeout(() => { throw new Error('thrown') })", r"page error: Error: thrown"),
        ("Promise.reject(new Error('rejected'))", r"page error: Error: rejected"),
        ("fetch('http://127.0.0.1:9/').catch(() => 0)", r"a request to another host: http://127\.0\.0\.1:9/"),
        ("document.body.append(Object.assign(document.createElement('script'), {textContent: '1'}))", "script-src"),
        ("fetch('/missing')", "status of 404"),
    ],
)
def test_a_complaint_is_noted(script: str, complaint: str, served: Serve, context: Open) -> None:
    watched = context(write(served, GOOD, script))
    page = watched.page("/page.html")
    while not any(re.search(complaint, each) for each in watched.complaints):
        page.wait_for_timeout(20)
    with pytest.raises(AssertionError, match=complaint):
        watched.check()
    watched.expect(".")


def test_an_expected_complaint_has_to_come(served: Serve, context: Open) -> None:
    watched = context(write(served, GOOD))
    watched.page("/page.html")
    watched.expect("401")
    with pytest.raises(AssertionError, match="no complaint matches '401'"):
        watched.check()
    watched.expected.clear()


def test_a_barrier_is_found(served: Serve, context: Open) -> None:
    watched = context(write(served, GOOD), strict=False)
    assert barriers(watched.page("/page.html")) == []
    write(served, GOOD + '<button></button><p style="color: #ddd">pale</p>')
    found = "\n".join(barriers(watched.page("/page.html?again")))  # a change within a second is none by its date
    assert "button-name" in found
    assert "color-contrast" in found
