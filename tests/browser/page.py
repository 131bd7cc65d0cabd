"""Debian's Chromium, driven by Playwright, on a page of JupyterLab."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Literal

from playwright.sync_api import Browser, Locator, Page, sync_playwright

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
START_MS = 90_000

Theme = Literal["light", "dark"]
THEMES: dict[Theme, str] = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


def chromium() -> str:
    """Where Chromium is.

    Raises:
        FileNotFoundError: nowhere.
    """
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise FileNotFoundError("Chromium is needed: apt-get install chromium")
    return found


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless browser for as long as it is used."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def open_lab(page: Page, url: str) -> None:
    """Open JupyterLab and wait until it is there."""
    page.goto(url)
    page.locator("#jp-main-dock-panel").wait_for(timeout=START_MS)
    page.locator("#jupyterlab-splash").wait_for(state="detached", timeout=START_MS)


def open_panel(page: Page) -> Locator:
    """Show the panel through its tab in the sidebar, and wait for it."""
    panel = page.locator("#horus-lab-panel")
    if not panel.is_visible():
        page.locator('.jp-SideBar [data-id="horus-lab-panel"]').click()
    panel.wait_for()
    return panel


def set_theme(page: Page, theme: Theme) -> None:
    """Switch JupyterLab's theme, and wait until it is drawn."""
    if page.locator(f'body[data-jp-theme-name="{THEMES[theme]}"]').count() == 0:
        page.locator(".lm-MenuBar-item", has_text="Settings").click()
        page.locator(".lm-Menu-item", has_text="Theme").first.hover()
        page.locator(".lm-Menu-item", has_text=THEMES[theme]).first.click()
    page.locator(f'body[data-jp-theme-name="{THEMES[theme]}"]').wait_for(state="attached")
