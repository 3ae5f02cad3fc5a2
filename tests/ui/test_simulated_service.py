"""What the pages tell of services in trouble, in change and under load, of which the demo service has nothing."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect
from ui_support import services
from ui_support.serving import Simulate
from ui_support.watched import Open


def panel(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def test_a_failing_engine_is_shown_with_its_last_line(context: Open, simulate: Simulate) -> None:
    page = context(simulate("failing").origin).page("/ui/#/service")
    failures = page.get_by_role("list", name="Failures")
    expect(failures).to_contain_text(services.LAST_LINE)
    expect(failures).to_contain_text("exit 1, 10 restarts")
    conditions = panel(page, "Conditions")
    expect(conditions.locator(".condition.bad").first).to_contain_text("CrashLoopBackOff")
    expect(panel(page, "Engines")).to_contain_text("3 of 4 ready")
    expect(panel(page, "Adapters")).to_contain_text("3 of 4")
    expect(panel(page, "Events")).to_contain_text("Back-off restarting failed container engine")


def test_a_canary_shows_its_steps_and_both_revisions(context: Open, simulate: Simulate) -> None:
    page = context(simulate("canary").origin).page("/ui/#/service")
    canary = panel(page, "Canary")
    expect(canary).to_contain_text("has 25 % of the requests")
    expect(canary.get_by_role("list", name="Steps").locator('[aria-current="step"]')).to_contain_text("25")
    for revision in (services.STABLE, services.CANARY):
        expect(canary.get_by_role("cell", name=revision)).to_be_visible()
        expect(panel(page, "Engines").get_by_role("cell", name=revision).first).to_be_visible()


def test_engines_and_scaling_show_their_numbers(context: Open, simulate: Simulate) -> None:
    page = context(simulate("calm").origin).page("/ui/#/service")
    first = panel(page, "Engines").locator("tbody tr").first
    for meter in ("Running requests", "KV cache", "GPU memory"):
        value = first.get_by_role("meter", name=meter).first.get_attribute("aria-valuenow")
        assert value is not None
        assert 0 <= int(value) <= 100
    expect(first.locator('[data-label="Cache hits"]')).to_contain_text("%")
    scaling = panel(page, "Scaling")
    expect(scaling).to_contain_text("TTFT 341 ms, TPOT 28 ms expected")
    expect(scaling.get_by_role("list", name="Last changes")).to_contain_text("1 → 2")
    page.get_by_text("1 warning").first.scroll_into_view_if_needed()
    expect(panel(page, "Checks")).to_contain_text("check_pb_env")


def test_traffic_tells_keys_apart(context: Open, simulate: Simulate) -> None:
    page = context(simulate("big").origin).page("/ui/#/traffic")
    expect(page.get_by_role("heading", name="Tokens/s by key")).to_be_visible()
    table = page.get_by_role("table", name="Requests")
    expect(table).to_have_attribute("aria-rowcount", "201")
    page.get_by_role("combobox", name="Key").select_option("team-b")
    expect(table.locator(".requests-all .r-key").first).to_have_text("team-b")
    assert set(table.locator(".requests-all .r-key").all_inner_texts()) == {"team-b"}


def test_a_retried_request_shows_its_attempts(context: Open, simulate: Simulate) -> None:
    page = context(simulate("failing").origin).page("/ui/#/traffic")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("combobox", name="Status").select_option("retried")
    page.get_by_role("table", name="Requests").get_by_role("button").first.click()
    details = page.get_by_role("dialog", name="Request")
    expect(details.get_by_role("heading", name="Attempts")).to_be_visible()
    attempts = details.get_by_role("table").locator("tbody tr")
    assert attempts.count() >= 2
    assert len(set(attempts.locator("td:nth-child(2)").all_inner_texts())) >= 2


@pytest.mark.parametrize("tab", ["Chat", "Service", "Traffic"])
def test_the_keyboard_reaches_the_content(tab: str, context: Open, simulate: Simulate) -> None:
    page = context(simulate("calm").origin).page("/ui/#/service")
    link = page.get_by_role("navigation", name="Pages").get_by_role("link", name=tab)
    link.focus()
    page.keyboard.press("Enter")
    expect(link).to_have_attribute("aria-current", "page")
    page.get_by_role("link", name="Skip to content").focus()
    expect(page.get_by_role("link", name="Skip to content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
