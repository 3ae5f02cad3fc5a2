"""The chat of the demo service: a conversation, its branches, and where it is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from ui_support.chat import Chat, text_of
from ui_support.demo import ADAPTER, ANSWER, NAME, QUESTION, Demo
from ui_support.watched import Open

LONG = 2400
"""Tokens of a response that nobody waits for."""

# The lengths that the last turn had, one after another, once there are five
_GROWTH = """
() => new Promise((resolve) => {
  const lengths = [];
  const observer = new MutationObserver(() => {
    const turn = [...document.querySelectorAll("article")].at(-1);
    const length = turn?.querySelector(".markdown")?.textContent.length ?? 0;
    if (length !== lengths.at(-1)) lengths.push(length);
    if (lengths.length < 5) return;
    observer.disconnect();
    resolve(lengths);
  });
  observer.observe(document.querySelector("main"), { subtree: true, childList: true, characterData: true });
})
"""


@pytest.fixture
def chat(page: Page) -> Chat:
    return Chat(page)


def test_it_streams_until_it_is_stopped(chat: Chat) -> None:
    chat.set("Ignore end of sequence", "true")
    chat.set("Max tokens", str(LONG))
    chat.send(QUESTION)
    growing = chat.turns.last
    expect(growing).to_have_attribute("aria-busy", "true")
    lengths = chat.page.evaluate(_GROWTH)
    assert lengths == sorted(lengths)
    expect(growing.locator(".stats")).to_contain_text("TTFT")
    expect(growing.locator(".stats")).to_contain_text("tokens/s")
    chat.page.get_by_role("button", name="Stop").click()
    stopped = chat.response()
    expect(stopped.locator(".stats")).to_contain_text("stopped")
    chat.send("And sorted?")  # nothing is in its way
    chat.page.keyboard.press("Escape")
    expect(chat.response().locator(".stats")).to_contain_text("stopped")


def test_a_response_is_whole_and_measured(chat: Chat) -> None:
    chat.greedy()
    response = chat.ask(QUESTION)
    assert text_of(response) == ANSWER
    expect(response.locator(".stats")).to_contain_text("TTFT")
    expect(response.locator(".stats")).to_contain_text("tokens/s")
    expect(response.locator(".stats")).to_contain_text("prompt")


def test_enter_sends_and_shift_enter_does_not(chat: Chat) -> None:
    chat.message.press_sequentially("What does")
    chat.message.press("Shift+Enter")
    chat.message.press_sequentially("len do?")
    expect(chat.message).to_have_value("What does\nlen do?")
    expect(chat.turns).to_have_count(0)
    chat.message.press("Enter")
    chat.response()
    expect(chat.turns).to_have_count(2)
    expect(chat.message).to_have_value("")


def test_a_message_is_edited_and_sent_again_as_a_branch(chat: Chat) -> None:
    chat.greedy()
    first = text_of(chat.ask(QUESTION))
    chat.turns.first.get_by_role("button", name="Edit and resend").click()
    edit = chat.page.get_by_role("textbox", name="Edit the message")
    expect(edit).to_be_focused()
    edit.fill("What is a KeyError?")
    chat.page.get_by_role("button", name="Resend", exact=True).click()
    expect(chat.turns.first).to_contain_text("2/2")
    second = text_of(chat.response())
    assert "mapping key not found" in second
    chat.turns.first.get_by_role("button", name="Previous branch").click()
    expect(chat.turns.first).to_contain_text(QUESTION)
    assert text_of(chat.response()) == first


def test_a_response_is_regenerated(chat: Chat) -> None:
    chat.greedy()
    first = text_of(chat.ask(QUESTION))
    chat.turns.last.get_by_role("button", name="Regenerate").click()
    expect(chat.turns.last).to_contain_text("2/2")
    assert text_of(chat.response()) == first


def test_the_turns_before_are_sent_along(chat: Chat) -> None:
    chat.greedy()
    chat.set("System prompt", "Be brief.")
    first = text_of(chat.ask(QUESTION))
    body = chat.send("What does sorted do?")
    chat.response()
    assert [(turn["role"], turn["content"]) for turn in body["messages"]] == [
        ("system", "Be brief."),
        ("user", QUESTION),
        ("assistant", first),
        ("user", "What does sorted do?"),
    ]


def test_an_adapter_is_picked_like_a_model(chat: Chat) -> None:
    chat.greedy()
    picker = chat.toolbar.get_by_role("combobox", name="Model")
    expect(picker).to_have_value(NAME)
    picker.select_option(ADAPTER)
    body = chat.send(QUESTION)
    assert body["model"] == ADAPTER
    response = chat.response()
    expect(response).to_have_accessible_name(ADAPTER)
    assert text_of(response) != ANSWER


def test_two_models_have_one_prompt_side_by_side(chat: Chat) -> None:
    chat.greedy()
    chat.toolbar.get_by_role("button", name="Compare").click()
    base, adapter = (chat.page.get_by_role("region", name=f"Conversation with {name}") for name in (NAME, ADAPTER))
    expect(adapter).to_be_visible()
    chat.send(QUESTION)
    for side in (base, adapter):
        expect(side.get_by_role("article").last).to_have_attribute("aria-busy", "false")
    assert text_of(base.get_by_role("article").last) == ANSWER
    assert text_of(adapter.get_by_role("article").last) not in ("", ANSWER)
    left, right = base.bounding_box(), adapter.bounding_box()
    assert left is not None
    assert right is not None
    assert left["x"] + left["width"] <= right["x"] + 1
    chat.toolbar.get_by_role("button", name="Compare").click()
    expect(adapter).to_be_hidden()


def test_conversations_stay_in_this_browser(chat: Chat, context: Open, service: Demo, tmp_path: Path) -> None:
    chat.greedy()
    chat.ask(QUESTION)
    chat.page.reload()
    kept = chat.page.get_by_role("navigation", name="Conversations")
    assert text_of(chat.response()) == ANSWER  # its address leads to it
    kept.get_by_role("button", name="New chat").click()
    expect(chat.turns).to_have_count(0)
    chat.page.go_back()
    assert text_of(chat.response()) == ANSWER
    with chat.page.expect_download() as download:
        kept.get_by_role("button", name=f"Export {QUESTION}").click()
    file = tmp_path / "exported.json"
    download.value.save_as(file)
    assert ANSWER in json.dumps(json.loads(file.read_text()))

    other = Chat(context(service.origin, width=1600).page())
    theirs = other.page.get_by_role("navigation", name="Conversations")
    expect(theirs).to_contain_text("Conversations stay in this browser.")
    other.page.get_by_label("A file of exported conversations").set_input_files(file)
    theirs.get_by_role("button", name=QUESTION, exact=True).click()
    assert text_of(other.response()) == ANSWER

    kept.get_by_role("button", name=f"Rename {QUESTION}").click()
    chat.page.get_by_role("dialog").get_by_label("Title").fill("About len")
    chat.page.keyboard.press("Enter")
    kept.get_by_role("button", name="Delete About len").click()
    chat.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(kept).to_contain_text("Conversations stay in this browser.")
    chat.page.reload()
    expect(kept).to_contain_text("Conversations stay in this browser.")
