"""What can be told from a picture of a page: whether anything is on it, and where."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from playwright.sync_api import Browser, Page

_COUNT = """
async (encoded) => {
  const blob = await (await fetch(`data:image/png;base64,${encoded}`)).blob();
  const image = await createImageBitmap(blob);
  const canvas = new OffscreenCanvas(image.width, image.height);
  const drawing = canvas.getContext("2d");
  drawing.drawImage(image, 0, 0);
  const pixels = new Uint32Array(drawing.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  const [background, most] = [...counts].reduce((best, each) => (each[1] > best[1] ? each : best));
  const bands = Array.from({ length: 10 }, (_, band) => {
    const at = (end) => Math.floor((end * image.height) / 10) * image.width;
    return pixels.subarray(at(band), at(band + 1)).some((pixel) => pixel !== background);
  });
  return [1 - most / pixels.length, bands.filter(Boolean).length, counts.size];
}
"""


@dataclass(frozen=True)
class Ink:
    """Pixels of another colour than the background, which is the most frequent one."""

    share: float
    """Of all pixels, 0..1."""
    bands: int
    """How many of ten equally high bands have any."""
    colours: int
    """Different colours of the whole picture."""

    @property
    def empty(self) -> bool:
        """Nobody would call it a page: a line of text at most."""
        return self.share < 0.005 or self.bands < 3 or self.colours < 10


def ink(browser: Browser, picture: bytes) -> Ink:
    """How much is on a screenshot (PNG); the browser itself decodes it."""
    page = browser.new_page()
    try:
        share, bands, colours = page.evaluate(_COUNT, base64.b64encode(picture).decode())
    finally:
        page.close()
    return Ink(share, bands, colours)


def screenshot(page: Page) -> bytes:
    """What the window shows, with moving parts at their ends."""
    return page.screenshot(animations="disabled", caret="hide")
