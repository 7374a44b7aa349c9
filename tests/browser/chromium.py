"""Headless Chromium, and how long it takes from a key press to the changed picture. No test in here: helpers.

python tests/browser/chromium.py        measures a player with 4 ranks and one with 16
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync"]


def why_not() -> str:
    """Why no browser test can run here; empty if one can."""
    if not CHROMIUM.exists():
        return f"{CHROMIUM} is missing: apt-get install chromium"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is missing: pip install playwright (Debian's chromium serves, no download of browsers)"
    return ""


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        try:
            yield chromium
        finally:
            chromium.close()


# A frame is on the screen when a message posted from its animation callback is handled.
_WATCH = """(selector) => {
  window.keyToPaint = [];
  const picture = document.querySelector(selector);
  window.addEventListener("keydown", (event) => {
    const before = picture.dataset.frame;
    requestAnimationFrame(() => {
      const changed = picture.dataset.frame !== before;
      const channel = new MessageChannel();
      channel.port1.onmessage = () => changed && window.keyToPaint.push(performance.now() - event.timeStamp);
      channel.port2.postMessage(0);
    });
  }, true);
}"""


def key_to_paint(page: Any, presses: int = 30, root: str = "section.dtc") -> float:
    """Median milliseconds from a key press to the painted new frame of the player in `page`."""
    page.focus(root)
    page.keyboard.press("Home")
    page.evaluate(_WATCH, f"{root} svg.dtc-picture")
    for number in range(presses):
        end = page.locator(f"{root} input[type=range]").first
        page.keyboard.press("Home" if end.input_value() == end.get_attribute("max") else "ArrowRight")
        page.wait_for_timeout(40 + 7 * (number % 5))  # not in step with the screen
    times = page.evaluate("window.keyToPaint")
    if len(times) < presses // 2:
        raise RuntimeError(f"{presses} keys pressed and {len(times)} changes painted: does the player take the keys?")
    return statistics.median(times)


def measure(world: int = 4, presses: int = 30) -> float:
    """`key_to_paint` of a simulated ring's player."""
    sys.path.append(str(Path(__file__).parent.parent / "views"))
    from simulated import ring_run

    from dtcourse.views.page import write_page

    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        path = write_page(ring_run(world, 3 * world, floats=world > 8), Path(folder) / "page.html")
        page = chromium.new_page()
        page.goto(path.as_uri())
        return key_to_paint(page, presses)


if __name__ == "__main__":
    for ranks in (4, 16):
        print(f"{ranks} ranks: {measure(ranks):.1f} ms from key to paint (median)")
