"""The Service and Traffic pages of the demo service: what the operator and the router really know of it."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect
from ui_support.chat import Chat
from ui_support.demo import ADAPTER, NAME, QUESTION, Demo
from ui_support.watched import Open

CONDITIONS = ("Ready", "SpecValid", "ModelCached", "PreflightPassed", "ModelFits", "WorkersReady", "RouterReady")


def panel(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def test_the_service_shows_its_conditions_and_engines(context: Open, service: Demo) -> None:
    page = context(service.origin).page("/ui/#/service")
    conditions = panel(page, "Conditions")
    for name in CONDITIONS:
        expect(conditions.locator(".condition-name").get_by_text(name, exact=True)).to_be_visible()
    expect(conditions.locator(".condition.bad")).to_have_count(0)
    engines = panel(page, "Engines")
    expect(engines).to_contain_text("2 of 2 ready")
    rows = engines.locator("tbody tr")
    expect(rows).to_have_count(2)
    for row in rows.all():
        expect(row).to_contain_text("ready")
        expect(row).to_contain_text(ADAPTER)
        expect(row.get_by_role("meter", name="Running requests")).to_be_visible()
    revision = service.running.service(NAME)["status"]["revision"]["current"]
    expect(rows.first).to_contain_text(revision)
    expect(panel(page, "Pods").get_by_role("row")).to_have_count(4)  # a head, two engines, a router
    expect(panel(page, "Adapters")).to_contain_text(f"{ADAPTER}2 of 2")
    expect(panel(page, "Checks")).to_contain_text("passed")
    expect(panel(page, "Rollout")).to_contain_text("Complete")
    expect(panel(page, "Scaling")).to_contain_text("2 engines")
    expect(panel(page, "Events")).to_contain_text("Ready")
    page.get_by_role("button", name="YAML").click()
    expect(page.get_by_role("dialog")).to_contain_text("kind: LLMService")


def test_traffic_shows_requests_just_made(context: Open, service: Demo) -> None:
    page = context(service.origin).page("/ui/#/traffic")
    table = page.get_by_role("table", name="Requests")
    expect(panel(page, "Requests")).to_be_visible()
    made = [_complete(service, model) for model in (NAME, ADAPTER)]
    for identity in made:
        expect(table.locator(f'[data-id="{identity}"]')).to_be_visible()
    page.get_by_role("combobox", name="Model").select_option(ADAPTER)
    expect(table.locator(f'[data-id="{made[1]}"]')).to_be_visible()
    expect(table.locator(f'[data-id="{made[0]}"]')).to_have_count(0)
    page.get_by_role("combobox", name="Status").select_option("error")
    expect(table.locator(f'[data-id="{made[1]}"]')).to_have_count(0)
    page.get_by_role("button", name="Clear").click()
    table.locator(f'[data-id="{made[0]}"]').click()
    details = page.get_by_role("dialog", name="Request")
    expect(details).to_contain_text(made[0])
    expect(details).to_contain_text("/v1/chat/completions")
    expect(details).to_contain_text("5 tokens")
    expect(details).to_contain_text("Why this engine")
    page.keyboard.press("Escape")
    expect(details).to_be_hidden()
    expect(table.locator(f'[data-id="{made[0]}"]')).to_be_focused()


def test_a_chat_in_one_tab_is_traffic_in_another(context: Open, service: Demo) -> None:
    watched = context(service.origin, width=1600)
    traffic = watched.page("/ui/#/traffic")
    table = traffic.get_by_role("table", name="Requests")
    expect(panel(traffic, "Requests")).to_be_visible()
    chat = Chat(watched.page())
    with chat.page.expect_response("**/v1/chat/completions") as answered:
        chat.ask(QUESTION)
    identity = answered.value.headers["x-request-id"]
    expect(table.locator(f'[data-id="{identity}"]')).to_be_visible()


def test_plots_show_what_is_measured(context: Open, service: Demo) -> None:
    page = context(service.origin).page("/ui/#/traffic")
    _complete(service, NAME)
    for title in ("Time to first token (TTFT)", "Time per output token (TPOT)", "Requests"):
        plot = page.locator(".plot").filter(has_text=title).first
        expect(plot.locator("canvas")).to_be_visible()
    page.get_by_text("As a table of Time to first token (TTFT)").click()
    table = page.get_by_role("region", name="Time to first token (TTFT), as a table")
    expect(table.get_by_role("cell").filter(has_text="ms").first).to_be_visible()


@pytest.mark.parametrize("accept", ["text/html,application/xhtml+xml", "*/*"])
def test_a_browser_is_sent_to_the_page_and_others_are_not(accept: str, service: Demo) -> None:
    found = httpx.get(service.origin, headers={"accept": accept}, trust_env=False)
    browser = accept.startswith("text/html")
    assert (found.status_code == 302) == browser
    assert (found.headers.get("location") == "/ui/") == browser


def _complete(service: Demo, model: str) -> str:
    """One request of five tokens; its id."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answered = httpx.post(f"{service.origin}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    assert answered.status_code == 200, answered.text
    return str(answered.headers["x-request-id"])
