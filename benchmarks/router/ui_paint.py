"""How long until the web UI shows anything: first contentful paint in Chromium, of a browser that has nothing cached.

The real router serves the page; one without an engine, whose traffic is nobody's. Beside it, that of a simulated
service of 64 engines and 2,000 streams.

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
    return found


if __name__ == "__main__":
    sys.exit(report("ui_paint", figures(), loads=str(LOADS)))
