"""Whether a page fits its window: nothing reaches out of it, and no text out of what holds it."""

from __future__ import annotations

from playwright.sync_api import Page

_MISFITS = """
() => {
  const found = [];
  const width = document.documentElement.clientWidth;
  const name = (element) => {
    const text = (element.textContent ?? "").trim().replace(/\\s+/g, " ").slice(0, 40);
    const kind = element.getAttribute("class");
    return `<${element.localName}${kind ? ` class="${kind}"` : ""}> ${JSON.stringify(text)}`;
  };
  const scrolls = (element) => {
    for (let each = element.parentElement; each && each !== document.body; each = each.parentElement)
      if (getComputedStyle(each).overflowX !== "visible") return true;
    return false;
  };
  const shown = (element) =>
    element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && element.getClientRects().length > 0;
  const page = document.scrollingElement;
  if (page.scrollWidth > width + 1) found.push(`the page is ${page.scrollWidth} px wide, its window ${width}`);
  for (const element of document.body.querySelectorAll("*")) {
    if (element.closest("svg") && element.localName !== "svg") continue;
    if (!shown(element)) continue;
    const box = element.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) continue;  // for screen readers only
    if ((box.right > width + 1 || box.left < -1) && !scrolls(element))
      found.push(`${name(element)} reaches from ${Math.round(box.left)} to ${Math.round(box.right)} of ${width} px`);
    if (element.matches("button, [role=tab], [role=button], summary, label, h1, h2, h3, h4, legend, dt, .badge")) {
      const hidden = getComputedStyle(element).overflowX !== "visible";
      const wide = element.scrollWidth - element.clientWidth, high = element.scrollHeight - element.clientHeight;
      if (element.clientWidth > 0 && (wide > 1 || (hidden && high > 2)))
        found.push(`${name(element)} needs ${wide} px more width, ${high} px more height for its text`);
    }
  }
  return found;
}
"""


def misfits(page: Page) -> list[str]:
    """What is wider than the window, reaches out of it, or has text that is cut off; a line each.

    Contents of a part that scrolls sideways by itself may be wider than it.
    """
    found: list[str] = page.evaluate(_MISFITS)
    return found
