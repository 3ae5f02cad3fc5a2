"""Images in the chat: attached, removed, sent, refused, and gone when the page is reloaded."""

from __future__ import annotations

import base64
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect
from ui_support.accessibility import barriers
from ui_support.chat import Chat
from ui_support.completions import REFUSAL, RESPONSE, Completions
from ui_support.layout import misfits
from ui_support.picture import ink, screenshot
from ui_support.serving import Simulate
from ui_support.watched import Open

GIF = base64.b64decode("R0lGODdhAQABAIAAAP8AAAAAACwAAAAAAQABAAACAkQBADs=")
WINDOWS = ((380, 800), (1024, 768), (1920, 1080))

# What the page made and has not revoked
_COUNT_URLS = """
() => {
  globalThis.urls = new Set();
  const { createObjectURL, revokeObjectURL } = URL;
  URL.createObjectURL = (blob) => {
    const url = createObjectURL.call(URL, blob);
    urls.add(url);
    return url;
  };
  URL.revokeObjectURL = (url) => {
    urls.delete(url);
    revokeObjectURL.call(URL, url);
  };
}
"""
_COPY = """
async (encoded) => {
  const bytes = Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
  await navigator.clipboard.write([new ClipboardItem({ "image/png": new Blob([bytes], { type: "image/png" }) })]);
}
"""


def png(width: int = 64, height: int = 48, colour: tuple[int, int, int] = (200, 40, 40)) -> bytes:
    """An image of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(colour) * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def file(name: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": "", "buffer": content}


def url(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def part(kind: str, content: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(kind, content)}}


def attach(page: Page, *files: FilePayload) -> None:
    """Choose them in the browser's dialog."""
    page.get_by_label("Image files").set_input_files(list(files))


def drag(page: Page, kind: str, over: Locator, *files: Path) -> None:
    """As the system tells the browser of a drag of files."""
    box = over.bounding_box()
    assert box is not None
    data = {"items": [], "files": [str(each) for each in files], "dragOperationsMask": 1}
    where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    session = page.context.new_cdp_session(page)
    session.send("Input.dispatchDragEvent", {"type": kind, **where, "data": data})
    session.detach()


def thumbnails(page: Page) -> Locator:
    return page.get_by_role("list", name="Attached images").get_by_role("img")


def loaded(image: Locator) -> None:
    """The browser has decoded it: the policy of contents lets it."""
    expect(image).to_have_js_property("complete", True)
    expect(image).not_to_have_js_property("naturalWidth", 0)


@pytest.fixture
def completions() -> Completions:
    return Completions()


@pytest.fixture
def chat(context: Open, simulate: Simulate, completions: Completions) -> Chat:
    return Chat(context(simulate("calm", completions=completions).origin).page())


def test_images_are_attached_removed_and_sent(chat: Chat, completions: Completions) -> None:
    page = chat.page
    page.evaluate(_COUNT_URLS)
    red, blue = png(), png(colour=(30, 60, 200))
    attach(page, file("red.png", red), file("blue.png", blue), file("dot.gif", GIF))
    expect(thumbnails(page)).to_have_count(3)
    for each in thumbnails(page).all():
        loaded(each)
    page.get_by_role("button", name="Remove blue.png").focus()
    page.keyboard.press("Enter")
    expect(thumbnails(page)).to_have_count(2)
    expect(page.get_by_role("button", name="Remove dot.gif")).to_be_focused()
    assert page.evaluate("urls.size") == 2
    chat.send("What is it?")
    expect(chat.response()).to_contain_text(RESPONSE)
    expect(thumbnails(page)).to_have_count(0)
    assert completions.bodies[0]["messages"] == [
        {"role": "user", "content": [part("png", red), part("gif", GIF), {"type": "text", "text": "What is it?"}]}
    ]
    sent = chat.turns.first.get_by_role("list", name="Images").get_by_role("img")
    assert [each.get_attribute("alt") for each in sent.all()] == ["red.png", "dot.gif"]
    loaded(sent.first)
    assert page.evaluate("urls.size") == 2
    page.get_by_role("link", name="Service").click()
    expect(chat.turns).to_have_count(0)
    assert page.evaluate("urls.size") == 0


def test_the_button_opens_the_dialog_for_files_from_the_keyboard(chat: Chat) -> None:
    page = chat.page
    page.on("filechooser", lambda _: None)  # Chromium asks Playwright, from some time after the first listener on
    page.evaluate("1")
    page.get_by_role("button", name="Attach images").focus()
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    assert chooser.value.is_multiple()
    chooser.value.set_files([file("dot.gif", GIF)])
    expect(thumbnails(page)).to_have_count(1)
    expect(page.get_by_role("button", name="Attach images")).to_be_focused()


def test_a_message_without_images_is_a_text(chat: Chat, completions: Completions) -> None:
    chat.send("Hello")
    chat.response()
    assert completions.bodies[0]["messages"] == [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("where", ["Messages", "Message"])
def test_files_are_dropped(where: str, chat: Chat, completions: Completions, tmp_path: Path) -> None:
    page = chat.page
    target = page.get_by_role("group", name="Messages") if where == "Messages" else chat.message
    dropped = [tmp_path / "one.png", tmp_path / "two.gif"]
    for path, content in zip(dropped, (png(), GIF), strict=True):
        path.write_bytes(content)
    drag(page, "dragEnter", target, *dropped)
    drag(page, "dragOver", target, *dropped)
    expect(page.locator(".dragging")).to_be_visible()
    drag(page, "drop", target, *dropped)
    expect(page.locator(".dragging")).to_have_count(0)
    expect(thumbnails(page)).to_have_count(2)
    page.get_by_role("button", name="Send").click()  # without a word
    chat.response()
    assert completions.bodies[0]["messages"] == [{"role": "user", "content": [part("png", png()), part("gif", GIF)]}]


def test_an_image_is_pasted(chat: Chat, completions: Completions) -> None:
    page = chat.page
    page.evaluate(_COPY, base64.b64encode(png()).decode())
    chat.message.press("Control+V")
    loaded(thumbnails(page))
    chat.send("And this?")
    chat.response()
    pasted, text = completions.bodies[0]["messages"][0]["content"]
    assert pasted["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert text == {"type": "text", "text": "And this?"}
    page.evaluate("navigator.clipboard.writeText('words')")
    chat.message.press("Control+V")
    expect(chat.message).to_have_value("words")
    expect(thumbnails(page)).to_have_count(0)


def test_what_is_not_taken_is_told(chat: Chat, tmp_path: Path) -> None:
    page = chat.page
    paths = [tmp_path / name for name in ("notes.png", "large.png", "dot.gif")]
    for path, content in zip(paths, (b"words", png(), GIF), strict=True):
        path.write_bytes(content)
    os.truncate(paths[1], 21 << 20)  # to which it grows
    page.get_by_label("Image files").set_input_files(paths)
    problem = page.locator(".composer").get_by_role("alert")
    expect(problem).to_contain_text("notes.png is not an image that can be sent: choose PNG, JPEG, WebP or GIF.")
    expect(problem).to_contain_text("large.png has 21\u00a0MiB, and an image may have 20\u00a0MiB: make it smaller.")
    expect(thumbnails(page)).to_have_count(1)
    attach(page, *(file(f"{number}.gif", GIF) for number in range(18)))
    expect(thumbnails(page)).to_have_count(16)
    expect(problem).to_have_text(
        "A message has at most 16 images, and 3 files were left out: send more in another message."
    )
    page.get_by_role("button", name="Remove dot.gif").click()
    expect(problem).to_have_count(0)


def test_a_refusal_is_shown_and_the_image_can_be_left_out(context: Open, simulate: Simulate) -> None:
    completions = Completions(takes_images=False)
    watched = context(simulate("calm", completions=completions).origin)
    watched.expect("status of 400")
    chat = Chat(watched.page())
    attach(chat.page, file("red.png", png()))
    chat.send("What is it?")
    refused = chat.response()
    expect(refused).to_contain_text("The service refused the request")
    expect(refused).to_contain_text(REFUSAL)
    chat.turns.first.get_by_role("button", name="Edit and resend").click()
    expect(chat.page.get_by_role("textbox", name="Edit the message")).to_be_focused()
    chat.page.get_by_role("button", name="Remove red.png").click()
    chat.page.get_by_role("button", name="Resend", exact=True).click()
    expect(chat.response()).to_contain_text(RESPONSE)
    assert completions.bodies[-1]["messages"] == [{"role": "user", "content": "What is it?"}]


def test_images_are_not_stored(chat: Chat, completions: Completions) -> None:
    """The conversation is, with a placeholder; what is said then is sent without them."""
    page = chat.page
    attach(page, *(file(f"{number}.png", png() + bytes(1 << 20)) for number in range(8)))
    expect(thumbnails(page)).to_have_count(8)
    chat.send("What is it?")
    expect(chat.response()).to_contain_text(RESPONSE)
    chat.toolbar.get_by_role("button", name="Code").click()
    code = page.get_by_role("dialog", name="This request as code")
    expect(code).to_contain_text("data:image/png;base64,<0.png>")
    expect(code).to_contain_text("with names in place of images' base64")
    page.keyboard.press("Escape")
    page.reload()
    assert page.evaluate("JSON.stringify(localStorage).length") < 10_000
    expect(chat.response()).to_contain_text(RESPONSE)
    placeholders = chat.turns.first.get_by_role("list", name="Images").get_by_role("listitem")
    expect(placeholders).to_have_count(8)
    expect(placeholders.first).to_contain_text("0.png1\u00a0MiB, not kept by this page and not sent again")
    chat.send("Sure?")
    chat.response()
    assert [message["content"] for message in completions.bodies[-1]["messages"]] == ["What is it?", RESPONSE, "Sure?"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_images_fit_and_are_no_barrier(
    theme: str, context: Open, simulate: Simulate, browser: Browser, tmp_path: Path
) -> None:
    page = context(simulate("calm").origin, theme=theme, strict=False).page()
    chat = Chat(page)
    wide = [file(f"{'long-name-' * 12}{number}.png", png(3000, 200)) for number in range(3)]
    attach(page, *wide, file("high.png", png(40, 2000)))
    chat.send("What are they?")
    chat.response()
    attach(page, file("notes.txt", b"words"), *wide, *(file(f"{number}.png", png()) for number in range(13)))
    expect(thumbnails(page)).to_have_count(15)
    chat.turns.first.get_by_role("button", name="Edit and resend").click()
    found = barriers(page)
    for width, height in WINDOWS:
        page.set_viewport_size({"width": width, "height": height})
        found += [f"at {width} px: {fault}" for fault in misfits(page)]
        assert not ink(browser, screenshot(page)).empty
    chat.page.get_by_role("button", name="Cancel").click()
    page.reload()
    expect(chat.turns.first.get_by_role("listitem")).to_have_count(4)
    found += barriers(page)
    for width, height in WINDOWS:
        page.set_viewport_size({"width": width, "height": height})
        found += [f"reloaded, at {width} px: {fault}" for fault in misfits(page)]
    assert not found, "\n".join(found)
