"""Makes the pictures of the sidebar: `python -m tests.browser.screenshots [folder]`.

A real JupyterLab on simulated devices, in both themes, in windows 1280 and 900 pixels wide.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page

from tests.browser import scene
from tests.browser.lab import ROOT, Lab
from tests.browser.page import THEMES, open_browser, open_lab, open_panel, set_theme

WIDTHS = (1280, 900)
HEIGHT = 860
PANEL_WIDTHS = {1280: 420, 900: 300}
SETTLE_SECONDS = 75.0


def main() -> None:
    """Make every picture."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="horus-pictures-") as home:
        lab = Lab(Path(home) / "ana")
        try:
            scene.begin(lab)
            with open_browser() as browser:
                for width in WIDTHS:
                    context = browser.new_context(
                        viewport={"width": width, "height": HEIGHT}, device_scale_factor=1
                    )
                    page = context.new_page()
                    open_lab(page, lab.page_url.replace("/lab?", "/lab/tree/cnn.ipynb?"))
                    open_panel(page)
                    _resize(page, PANEL_WIDTHS[width])
                    time.sleep(SETTLE_SECONDS if width == WIDTHS[0] else 5.0)
                    for theme in THEMES:
                        set_theme(page, theme)
                        time.sleep(1.5)
                        page.screenshot(path=folder / f"sidebar-{theme}-{width}.png")
                        _show(page, "My jobs")
                        page.screenshot(path=folder / f"sidebar-jobs-{theme}-{width}.png")
                        _show(page, None)
                    context.close()
        finally:
            lab.close()


def _resize(page: Page, width: int) -> None:
    """Drag the sidebar's edge until the panel is this wide."""
    box = page.locator("#horus-lab-panel").bounding_box()
    assert box is not None
    edge, middle = box["x"] + box["width"] + 3, box["y"] + box["height"] / 2
    page.mouse.move(edge, middle)
    page.mouse.down()
    page.mouse.move(edge + width - box["width"], middle, steps=4)
    page.mouse.up()


def _show(page: Page, section: str | None) -> None:
    """Scroll a section's head to the top; the panel's own top without one."""
    page.evaluate(
        """name => {
          const panel = document.getElementById('horus-lab-panel');
          const heads = [...panel.querySelectorAll('.horus-Section-heading')];
          const found = heads.find(head => name !== null && head.textContent.includes(name));
          panel.scrollTop = found ? found.parentElement.offsetTop : 0;
        }""",
        section,
    )
    time.sleep(0.3)


if __name__ == "__main__":
    main()
