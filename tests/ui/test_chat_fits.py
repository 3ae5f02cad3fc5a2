"""The chat with much in it, in windows of three widths: nothing is cut off, and axe finds no barrier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from ui_support.accessibility import barriers
from ui_support.chat import Chat
from ui_support.demo import ADAPTER, QUESTION, Demo
from ui_support.layout import misfits
from ui_support.picture import ink, screenshot
from ui_support.watched import Open

WINDOWS = ((380, 800), (1024, 768), (1920, 1080))
LONG_WORD = "a" * 200
MARKDOWN = f"""# A heading

Words, **bold**, *italic*, `code`, [a link](https://example.com/{LONG_WORD}) and {LONG_WORD}.

| one | two | three | four | five | six | seven | eight | nine |
|---|---|---|---|---|---|---|---|---|
{"| a long cell of a table " * 9}|

```python
print("{LONG_WORD}")
```

1. first
   - nested
2. second

> quoted

<script>alert(1)</script><img src="https://example.com/x.png" onerror="alert(1)"> ![picture](https://example.com/x.png)
"""


def faults(page: Page, browser: Browser) -> list[str]:
    found = []
    for width, height in WINDOWS:
        page.set_viewport_size({"width": width, "height": height})
        found += [f"at {width} px: {fault}" for fault in misfits(page)]
        if (seen := ink(browser, screenshot(page))).empty:
            found.append(f"at {width} px: empty, {seen}")
    return found


def say(chat: Chat) -> None:
    """Two models side by side, tokens with probabilities, a call of a tool."""
    chat.greedy()
    chat.toolbar.get_by_role("button", name="Compare").click()
    chat.toolbar.get_by_role("button", name="Tokens").click()
    chat.open_settings().get_by_role("button", name="Insert an example").click()
    chat.send(QUESTION)
    for side in chat.page.get_by_role("region", name="Conversation with").all():
        expect(side.get_by_role("article").last).to_have_attribute("aria-busy", "false")


def test_two_models_tokens_and_settings_fit(context: Open, service: Demo, browser: Browser) -> None:
    chat = Chat(context(service.origin, width=1600).page())
    say(chat)
    expect(chat.page.get_by_role("region", name=f"Conversation with {ADAPTER}")).to_be_visible()
    found = faults(chat.page, browser)
    assert not found, "\n".join(found)


def test_markdown_fits_and_is_harmless(context: Open, service: Demo, browser: Browser, tmp_path: Path) -> None:
    """A response as a model may write it, imported; the harness notes whatever it would fetch or run."""
    chat = Chat(context(service.origin, width=1600).page())
    chat.ask(QUESTION)
    with chat.page.expect_download() as download:
        chat.page.get_by_role("button", name="Export all").click()
    text = Path(download.value.path()).read_text()
    exported = json.loads(text)
    _replace(exported, MARKDOWN)
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(exported))
    other = Chat(context(service.origin, width=1600).page())
    other.page.get_by_label("A file of exported conversations").set_input_files(file)
    other.page.get_by_role("navigation", name="Conversations").get_by_role("button", name=QUESTION, exact=True).click()
    response = other.response()
    expect(response.get_by_role("table")).to_be_visible()
    expect(response).to_contain_text("<script>alert(1)</script>")
    expect(response.locator("img, script")).to_have_count(0)
    found = faults(other.page, browser)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_conversation_has_no_barrier(theme: str, context: Open, service: Demo) -> None:
    chat = Chat(context(service.origin, width=1600, theme=theme, strict=False).page())
    say(chat)
    found = barriers(chat.page)
    chat.toolbar.get_by_role("button", name="Code").click()
    expect(chat.page.get_by_role("dialog")).to_be_visible()
    found += barriers(chat.page)
    assert not found, "\n".join(found)


def _replace(held: object, text: str) -> None:
    """Every turn of the model says ``text``."""
    if isinstance(held, dict):
        if held.get("role") == "assistant":
            held["content"] = text
        for each in held.values():
            _replace(each, text)
    elif isinstance(held, list):
        for each in held:
            _replace(each, text)
