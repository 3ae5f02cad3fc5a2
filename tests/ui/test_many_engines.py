"""64 engines and 2,000 streams: the pages stay small, keep what did not change, and respond."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect
from ui_support.serving import Simulate
from ui_support.watched import Open

UPDATES = 3

# Resolves, after so many updates of the live data, to whether each row still stands for what it stood for.
_KEPT = """
([rows, name, updates]) => new Promise((resolve) => {
  const key = (row) => row.querySelector(name).dataset.id ?? row.querySelector(name).textContent;
  const found = () => new Map([...document.querySelectorAll(rows)].map((row) => [key(row), row]));
  const before = found();
  let seen = 0;
  const observer = new MutationObserver(() => {
    if (++seen < updates) return;
    observer.disconnect();
    const after = found();
    const common = [...before.keys()].filter((key) => after.has(key));
    resolve([common.length, common.filter((key) => before.get(key) !== after.get(key)).length]);
  });
  observer.observe(document.querySelector("main"), { subtree: true, childList: true, characterData: true });
})
"""


def elements(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


@pytest.fixture
def big(context: Open, simulate: Simulate) -> Page:
    return context(simulate("big").origin).page("/ui/#/service")


def test_engines_are_sorted_and_their_rows_kept(big: Page) -> None:
    table = big.get_by_role("region", name="Engines").get_by_role("table")
    rows = table.locator("tbody tr")
    expect(rows).to_have_count(64)
    assert elements(big) < 6000
    common, replaced = big.evaluate(_KEPT, ["table.engines tbody tr", ".engine-name .mono", UPDATES])
    assert (common, replaced) == (64, 0)
    first = rows.first.locator(".engine-name .mono")
    name = first.inner_text()
    table.get_by_role("button", name="Engine").click()
    expect(first).not_to_have_text(name)
    table.get_by_role("button", name="Tokens/s").click()
    expect(table.get_by_role("columnheader", name="Tokens/s")).to_have_attribute("aria-sort", "descending")


def test_requests_are_a_window_of_a_list(big: Page) -> None:
    big.get_by_role("link", name="Traffic").click()
    table = big.get_by_role("table", name="Requests")
    expect(table).to_have_attribute("aria-rowcount", "201")
    expect(table.get_by_role("button").first).to_be_visible()
    assert elements(big) < 2500
    big.get_by_role("combobox", name="Engine").select_option(index=3)
    engine = big.get_by_role("combobox", name="Engine").input_value()
    engines = table.locator(".requests-all .r-engine")
    expect(engines.first).to_have_attribute("title", re.compile(f"^{engine}"))
    titles = engines.evaluate_all("(cells) => cells.map((cell) => cell.title)")
    assert {title.split()[0] for title in titles} == {engine}
    big.get_by_role("button", name="Clear").click()
    expect(table).to_have_attribute("aria-rowcount", "201")
    big.get_by_role("button", name="Pause").click()
    table.get_by_role("button").first.focus()
    big.keyboard.press("End")
    expect(table.locator('[role=row][aria-rowindex="201"] button')).to_be_focused()
    big.keyboard.press("Enter")
    expect(big.get_by_role("dialog", name="Request")).to_be_visible()


def test_requests_that_stay_keep_their_rows(context: Open, simulate: Simulate) -> None:
    page = context(simulate("calm").origin).page("/ui/#/traffic")
    expect(page.get_by_role("table", name="Requests").get_by_role("button").first).to_be_visible()
    common, replaced = page.evaluate(_KEPT, [".requests-all .request-row", ".request-open", 1])
    assert common > 0
    assert replaced == 0
