"""How long until the web UI shows anything: first contentful paint in Chromium, of a browser that has nothing cached.

The real router serves the page; one without an engine, whose traffic is nobody's. Beside it, that of a simulated
service of 64 engines and 2,000 streams, and what its updates cost: one comes each second, and a frame has 16.7 ms.

    python -m benchmarks.router.ui_paint        QUICK=1 for three loads
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

from benchmarks.figures import QUICK, Figure, report
from benchmarks.fleet import ROOT, router

LOADS = 3 if QUICK else 15
UPDATES = 5 if QUICK else 20
TARGET = 0.5
"""Seconds."""

_PAINT = """
() => new Promise((resolve) => {
  const seen = (list) => {
    const paint = list.getEntriesByName("first-contentful-paint")[0];
    if (paint) resolve(paint.startTime / 1000);
  };
  new PerformanceObserver(seen).observe({ type: "paint", buffered: true });
})
"""

# Resolves after so many updates, to the number of long tasks meanwhile; changes of one update come together.
_UPDATES = """
(updates) => new Promise((resolve) => {
  let seen = 0, last = 0, long = 0;
  const tasks = new PerformanceObserver((list) => (long += list.getEntries().length));
  tasks.observe({ type: "longtask" });
  new MutationObserver((_, observer) => {
    if (performance.now() - last < 300) return;
    last = performance.now();
    if (++seen < updates) return;
    observer.disconnect();
    tasks.disconnect();
    resolve(long);
  }).observe(document.querySelector("main"), { subtree: true, childList: true, characterData: true });
})
"""


def first_paints(browser: Browser, url: str, loads: int) -> list[float]:
    """Seconds from the navigation's start to the first text or picture, for each load; one more comes before."""
    found = []
    for _ in range(loads + 1):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.goto(url)
        found.append(float(page.evaluate(_PAINT)))
        context.close()
    return found[1:]


def update_costs(browser: Browser, url: str, tab: str, updates: int) -> list[Figure]:
    """Work of the browser's main thread for an update of a large service, and how many tasks took 50 ms or longer."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Performance.enable")

    def busy() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")

    page.goto(f"{url}/ui/#/{tab}")
    page.evaluate(_UPDATES, 2)
    before = busy()
    long_tasks = page.evaluate(_UPDATES, updates)
    cost = (busy() - before) / updates
    context.close()
    name = f"ui.update.{tab}_of_64_engines"
    return [Figure(f"{name}.main_thread", cost * 1e3, "ms"), Figure(f"{name}.long_tasks", long_tasks / updates, "each")]


def figures() -> list[Figure]:
    sys.path.insert(0, str(ROOT / "tests"))
    from ui_support.chromium import chromium
    from ui_support.serving import simulated

    found = []
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        program = router(Path(folder), "--endpoints", "http://127.0.0.1:9")
        try:
            program.wait_healthy(path="/ui/")
            times = first_paints(browser, f"{program.url}/ui/", LOADS)
        finally:
            program.kill()
        found.append(Figure("ui.first_paint.median", statistics.median(times), "s", "<=", TARGET))
        found.append(Figure("ui.first_paint.worst", max(times), "s"))
        with simulated("big") as server:
            for tab in ("service", "traffic"):
                times = first_paints(browser, f"{server.origin}/ui/#/{tab}", LOADS)
                found.append(Figure(f"ui.first_paint.{tab}_of_64_engines.median", statistics.median(times), "s"))
                found += update_costs(browser, server.origin, tab, UPDATES)
    return found


if __name__ == "__main__":
    sys.exit(report("ui_paint", figures(), loads=str(LOADS)))
