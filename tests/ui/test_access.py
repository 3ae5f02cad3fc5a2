"""Who may see what: routers with API keys, with the web UI off, and on plain http by a name."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect
from ui_support.chat import Chat, text_of
from ui_support.demo import ANSWER, NAME, QUESTION, Demo, keys_file, lone_router
from ui_support.watched import Open

KEYS = {"team-a": "sk-of-team-a", "team-b": "sk-of-team-b"}
PATHS = ("/ui/", "/ui", "/ui/stream", "/ui/index.html")


def test_a_key_opens_the_chat_and_shows_its_own_traffic(context: Open, service: Demo, tmp_path: Path) -> None:
    flags = ("--endpoints", ",".join(service.engines()), "--keys", str(keys_file(tmp_path, **KEYS)))
    with lone_router(tmp_path, *flags) as router:
        theirs = _complete(router.url, KEYS["team-b"])
        watched = context(router.url, width=1600)
        watched.expect("status of 401")
        page = watched.page()
        dialog = page.get_by_role("dialog", name="API key")
        dialog.get_by_label("API key").fill(KEYS["team-a"])
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog).to_be_hidden()
        chat = Chat(page)
        chat.greedy()
        with page.expect_response("**/v1/chat/completions") as answered:
            assert text_of(chat.ask(QUESTION)) == ANSWER
        chat.toolbar.get_by_role("button", name="Code").click()
        code = page.get_by_role("dialog", name="This request as code")
        expect(code).to_contain_text("$API_KEY")
        expect(code).not_to_contain_text(KEYS["team-a"])
        page.keyboard.press("Escape")
        page.get_by_role("link", name="Traffic").click()
        table = page.get_by_role("table", name="Requests")
        expect(table.locator(f'[data-id="{answered.value.headers["x-request-id"]}"]')).to_be_visible()
        expect(table.locator(f'[data-id="{theirs}"]')).to_have_count(0)
        expect(page.locator("main")).to_contain_text("requests of the key team-a only")
        page.get_by_role("link", name="Service").click()
        expect(page.get_by_role("heading", name="Router")).to_be_visible()
        watched.context.close()


def test_off_it_is_not_there(service: Demo, tmp_path: Path) -> None:
    with lone_router(tmp_path, "--endpoints", ",".join(service.engines()), "--no-ui") as router:
        statuses = {path: httpx.get(f"{router.url}{path}", trust_env=False).status_code for path in PATHS}
        assert statuses == dict.fromkeys(PATHS, 404)
        root = httpx.get(f"{router.url}/", headers={"accept": "text/html"}, trust_env=False)
        assert root.status_code != 302
        assert httpx.get(f"{router.url}/v1/models", trust_env=False).status_code == 200


@pytest.mark.parametrize("path", ["/ui/", "/ui/assets/"])
def test_files_are_sent_with_a_strict_policy(path: str, service: Demo) -> None:
    page = httpx.get(f"{service.origin}/ui/", trust_env=False)
    script = next(part.split('"')[0] for part in page.text.split('src="')[1:])
    found = page if path == "/ui/" else httpx.get(f"{service.origin}{script}", trust_env=False)
    assert found.status_code == 200
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["referrer-policy"] == "no-referrer"
    assert found.headers["content-security-policy"].startswith(
        "default-src 'none'; script-src 'self'; style-src 'self'"
    )


def test_by_a_name_over_plain_http(context: Open, service: Demo) -> None:
    """As through a cluster's Service: browsers keep some of their functions for https and this machine."""
    watched = context(f"http://demo.test:{service.running.port}", width=1600)
    chat = Chat(watched.page())
    assert not chat.page.evaluate("isSecureContext")
    chat.greedy()
    assert text_of(chat.ask(QUESTION)) == ANSWER
    chat.toolbar.get_by_role("button", name="Code").click()
    dialog = chat.page.get_by_role("dialog", name="This request as code")
    copy = dialog.get_by_role("button", name="Copy the code")
    copy.press("Enter")
    expect(chat.page.get_by_text("Copied")).to_be_attached()
    expect(copy).to_be_focused()


def _complete(url: str, key: str) -> str:
    body = {"model": NAME, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 3}
    headers = {"authorization": f"Bearer {key}"}
    answered = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60, trust_env=False)
    assert answered.status_code == 200, answered.text
    return str(answered.headers["x-request-id"])
