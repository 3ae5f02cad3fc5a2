"""Every page of simulated services: nothing is empty, cut off or wider than the window, and axe finds no barrier."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect
from ui_support.accessibility import barriers
from ui_support.layout import misfits
from ui_support.picture import ink, screenshot
from ui_support.scenarios import SCENARIOS
from ui_support.serving import Simulate
from ui_support.watched import Open

WINDOWS = ((380, 800), (1024, 768), (1920, 1080))
TABS = ("chat", "service", "traffic")


def go(page: Page, tab: str) -> None:
    """By the link in the header; until what comes with live data is there."""
    page.get_by_role("navigation", name="Pages").get_by_role("link", name=tab).click()
    if tab == "service":
        expect(page.get_by_role("region", name="Engines").get_by_role("table")).to_be_visible()
    elif tab == "traffic":
        expect(page.get_by_role("table", name="Requests").get_by_role("row").nth(1)).to_be_visible()


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_every_page_fits_every_window(scenario: str, context: Open, simulate: Simulate, browser: Browser) -> None:
    page = context(simulate(scenario).origin).page()
    faults = []
    for tab in TABS:
        go(page, tab)
        for width, height in WINDOWS:
            page.set_viewport_size({"width": width, "height": height})
            faults += [f"{tab} at {width} px: {fault}" for fault in misfits(page)]
            if (found := ink(browser, screenshot(page))).empty:
                faults.append(f"{tab} at {width} px is empty: {found}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("width", [380, 900, 1024])
def test_settings_leave_the_toolbar_free(width: int, context: Open, simulate: Simulate) -> None:
    """They share the width with the messages, or lie over them; a second click closes them."""
    page = context(simulate("calm").origin, width=width).page()
    button = page.get_by_role("group", name="This conversation").get_by_role("button", name="Settings")
    settings = page.get_by_role("complementary", name="Settings of this conversation")
    button.click()
    expect(settings).to_be_visible()
    button.click()
    expect(settings).to_be_hidden()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("scenario", ["bare", "canary", "failing", "own"])
def test_no_page_has_a_barrier(scenario: str, theme: str, context: Open, simulate: Simulate) -> None:
    page = context(simulate(scenario).origin, theme=theme, strict=False).page()
    found = []
    for tab in TABS:
        go(page, tab)
        found += [f"{tab}: {barrier}" for barrier in barriers(page)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_dialog_has_a_barrier(theme: str, context: Open, simulate: Simulate) -> None:
    page = context(simulate("failing").origin, theme=theme, strict=False).page()
    go(page, "service")
    page.get_by_role("button", name="YAML").click()
    expect(page.get_by_role("dialog")).to_contain_text("kind: LLMService")
    assert barriers(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    go(page, "traffic")
    page.get_by_role("table", name="Requests").get_by_role("button").first.click()
    expect(page.get_by_role("dialog", name="Request")).to_be_visible()
    assert barriers(page) == []


def test_the_theme_of_the_system_is_taken_and_another_one_kept(context: Open, simulate: Simulate) -> None:
    page = context(simulate("bare").origin, theme="dark").page()
    body = page.locator("body")
    dark = str(body.evaluate("(body) => getComputedStyle(body).backgroundColor"))
    page.emulate_media(color_scheme="light")
    expect(body).not_to_have_css("background-color", dark)
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    expect(body).to_have_css("background-color", dark)
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    expect(body).to_have_css("background-color", dark)
