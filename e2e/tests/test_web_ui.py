"""The web UI through the cluster's Service, in Chromium inside the cluster's network: it is Ready, and one chats."""

from __future__ import annotations

from urllib.parse import urlsplit

from playwright.sync_api import Page, expect
from ui_support.chat import Chat, text_of
from ui_support.chromium import MILLISECONDS, chromium
from ui_support.layout import misfits
from ui_support.watched import watch

from e2e.support.prompts import RESPONSES
from e2e.support.service import Service, names

QUESTION = "What does len do?"


def test_it_opens_through_the_service_and_answers(demo: Service) -> None:
    expect.set_options(timeout=MILLISECONDS)
    with demo.reach() as url, chromium(urlsplit(url).hostname or "") as browser:
        watched = watch(browser, url, width=1600, height=900)
        page = watched.page("/")  # a browser is sent to the page
        chat = Chat(page)
        expect(chat.toolbar.get_by_role("combobox", name="Model")).to_have_value(demo.name)
        chat.greedy()
        assert text_of(chat.ask(QUESTION)) == RESPONSES[QUESTION]
        _is_shown(page, demo)
        watched.context.close()
        watched.check()


def _is_shown(page: Page, demo: Service) -> None:
    page.get_by_role("link", name="Service").click()
    conditions = page.get_by_role("region", name="Conditions")
    ready = conditions.get_by_role("listitem").filter(has_text="Ready").first
    expect(ready.locator(".condition-name").first).to_have_text("Ready")
    expect(conditions).to_contain_text("all OK")
    for pod in (*demo.pods("engine"), *demo.pods("router")):
        expect(page.get_by_role("region", name="Pods")).to_contain_text(names([pod])[0])
    assert misfits(page) == []
