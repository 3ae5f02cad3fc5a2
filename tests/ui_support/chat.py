"""The chat, as somebody uses it."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Locator, Page, expect

ENDPOINT = re.compile(r"/v1/chat/completions$")


class Chat:
    """The chat of a page that shows it; what is looked for is found by its role and its name."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.message = page.get_by_role("textbox", name="Message", exact=True)
        self.turns = page.get_by_role("article")
        self.settings = page.get_by_role("complementary", name="Settings of this conversation")
        self.toolbar = page.get_by_role("group", name="This conversation")

    def send(self, text: str) -> dict[str, Any]:
        """Type it and press Enter; the body of the request that is sent."""
        self.message.fill(text)
        with self.page.expect_request(ENDPOINT) as request:
            self.message.press("Enter")
        return dict(request.value.post_data_json or {})

    def ask(self, text: str) -> Locator:
        """Send it; the response, once it is whole."""
        self.send(text)
        return self.response()

    def response(self) -> Locator:
        """The last turn, once it is the model's and whole."""
        last = self.turns.last
        expect(last).to_have_attribute("aria-busy", "false")
        return last

    def open_settings(self) -> Locator:
        """The panel of settings; its sections are open."""
        if not self.settings.is_visible():
            self.toolbar.get_by_role("button", name="Settings").click()
        closed = self.settings.locator("details:not([open]) > summary")
        while closed.count():
            closed.first.click()
        return self.settings

    def set(self, label: str, value: str) -> None:
        """Give a field of the settings this value."""
        panel = self.open_settings()
        named = (panel.get_by_role(role, name=label, exact=True) for role in ("textbox", "combobox"))
        field = next(named).or_(next(named))
        if field.evaluate("(element) => element.localName") == "select":
            field.select_option(value)
        else:
            field.fill(value)

    def greedy(self) -> None:
        """Equal outputs for equal inputs from now on."""
        self.set("Temperature", "0")


def text_of(response: Locator) -> str:
    """What the model said, as it is shown."""
    return response.locator(".markdown").inner_text().strip()
