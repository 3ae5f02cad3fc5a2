"""The stream of live data: lost and found again, refused without a key."""

from __future__ import annotations

from playwright.sync_api import Page, expect
from ui_support.serving import Simulate
from ui_support.watched import Open

KEY = "sk-of-a-viewer"


def state(page: Page, text: str) -> None:
    """Wait until the header says so."""
    expect(page.get_by_role("status").get_by_text(text, exact=True)).to_be_visible()


def test_a_lost_stream_is_opened_again(context: Open, simulate: Simulate) -> None:
    server = simulate("calm")
    watched = context(server.origin)
    watched.expect("ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE")
    page = watched.page("/ui/#/service")
    state(page, "Live")
    server.stop()
    state(page, "Reconnecting")
    expect(page.get_by_role("heading", level=1)).to_contain_text("qwen")  # what was known stays
    server.start()
    state(page, "Live")


def test_without_a_key_it_asks_for_one_and_goes_on_with_it(context: Open, simulate: Simulate) -> None:
    server = simulate("own", key=KEY)
    watched = context(server.origin)
    watched.expect("401")
    page = watched.page("/ui/#/service")
    state(page, "API key needed")
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("API key").fill("sk-wrong")
    dialog.get_by_role("button", name="Use this key").click()
    state(page, "API key needed")
    expect(dialog).to_be_visible()
    dialog.get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    state(page, "Live")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("heading", level=1)).to_contain_text("qwen")
    page.reload()
    state(page, "Live")  # the tab of the browser keeps it
    assert page.evaluate("JSON.stringify(localStorage)").find(KEY) < 0
    assert KEY in page.evaluate("JSON.stringify(sessionStorage)")
    other = watched.page("/ui/#/service")
    state(other, "API key needed")
