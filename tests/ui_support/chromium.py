"""Chromium without a window, as Playwright drives it: found, started, with nothing to reach but this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Playwright, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Programs that are looked for on ``PATH``, best first."""

MILLISECONDS = 60_000
"""How long a step may take: machines that test are busy. Nothing waits longer than it has to."""

_FLAGS = (
    "--no-proxy-server",  # which the environment may name
    "--disable-dev-shm-usage",  # containers have 64 MiB of it
    "--disable-gpu",
    "--force-color-profile=srgb",
)


class NoBrowser(Exception):
    """There is no Chromium."""


def executable(driver: Playwright) -> str:
    """Chromium's path: ``CHROMIUM``, else what is on ``PATH``, else what ``playwright install`` brought.

    Raises:
        NoBrowser: there is none.
    """
    named = os.environ.get("CHROMIUM")
    found = [named] if named else [path for name in NAMES if (path := shutil.which(name))]
    for path in (*found, driver.chromium.executable_path):
        if Path(path).exists():
            return path
    raise NoBrowser("there is no Chromium on PATH: `make page-deps` installs it, CHROMIUM=<path> names another")


@contextlib.contextmanager
def chromium(*hosts: str) -> Iterator[Browser]:
    """A browser; pages of one context share nothing with those of another.

    Args:
        hosts: what it may reach beside this machine.

    Raises:
        NoBrowser: there is none to start.
    """
    with sync_playwright() as driver:
        excluded = ", ".join(f"EXCLUDE {host}" for host in ("127.0.0.1", *hosts))
        resolves = f"--host-resolver-rules=MAP *.test 127.0.0.1, MAP * ~NOTFOUND, {excluded}"
        arguments = [*_FLAGS, resolves]
        browser = driver.chromium.launch(executable_path=executable(driver), args=arguments, timeout=MILLISECONDS)
        try:
            yield browser
        finally:
            browser.close()
