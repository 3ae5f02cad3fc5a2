"""A context of the browser that notes what a user never sees: errors of scripts, of the console, of the policy of
contents, and requests to other hosts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request, WebError

from ui_support.chromium import MILLISECONDS

Theme = Literal["light", "dark"]
LOCAL_SCHEMES = ("data", "blob", "about")

_REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`content security policy: ${event.violatedDirective} of ${event.blockedURI || "inline"}`));
"""


@dataclass
class Watched:
    """A context and its complaints; ``origin`` is the only host its pages may ask."""

    context: BrowserContext
    origin: str
    complaints: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def expect(self, pattern: str) -> None:
        """A complaint that matches has to come, and is none then."""
        self.expected.append(pattern)

    def page(self, path: str = "/ui/") -> Page:
        """A new tab of the browser with this path, loaded."""
        page = self.context.new_page()
        page.goto(f"{self.origin}{path}")
        return page

    def check(self) -> None:
        """Say what was noted, as an error.

        Raises:
            AssertionError: a complaint that was not expected, or an expected one that did not come.
        """
        bad = [text for text in self.complaints if not any(re.search(each, text) for each in self.expected)]
        assert not bad, "\n".join(bad)
        for pattern in self.expected:
            assert any(re.search(pattern, text) for text in self.complaints), f"no complaint matches {pattern!r}"

    def on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"console {message.type}: {message.text} ({message.location.get('url', '')})")

    def on_error(self, error: WebError) -> None:
        self.complaints.append(f"page error: {_text(error.error)}")

    def on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in LOCAL_SCHEMES and f"{parts.scheme}://{parts.netloc}" != self.origin:
            self.complaints.append(f"a request to another host: {request.url}")


def watch(
    browser: Browser, origin: str, *, width: int = 1024, height: int = 768, theme: Theme = "light", strict: bool = True
) -> Watched:
    """A context with a window of this size; without ``strict`` the policy of contents is not heeded."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="UTC",
        bypass_csp=not strict,
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(MILLISECONDS)
    context.set_default_navigation_timeout(MILLISECONDS)
    context.add_init_script(_REPORT_VIOLATIONS)
    watched = Watched(context, origin)
    context.on("console", watched.on_console)
    context.on("weberror", watched.on_error)
    context.on("request", watched.on_request)
    return watched


def _text(error: Error) -> str:
    return error.stack or error.message


Open = Callable[..., Watched]
"""As `watch` without the browser, which a fixture has."""
