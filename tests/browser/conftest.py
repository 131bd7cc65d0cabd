"""One JupyterLab under a hub-like prefix, one browser, a fresh page for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.lab import Lab
from tests.browser.page import open_browser, open_lab, open_panel

expect.set_options(timeout=20_000)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab") / "home")
    yield lab
    lab.close()


@pytest.fixture
def lab(shared_lab: Lab) -> Iterator[Lab]:
    """JupyterLab with nobody on its devices."""
    shared_lab.clear()
    yield shared_lab
    shared_lab.clear()


class Watched:
    """What a page complained of, and whom it asked."""

    def __init__(self, page: Page) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type == "error" else None,
        )
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("websocket", lambda socket: self.requests.append(socket.url))


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of a browser that knows nobody yet."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(20_000)
    yield opened
    context.close()


@pytest.fixture
def watched(page: Page) -> Watched:
    """What happens on the page, from its first request on."""
    return Watched(page)


@pytest.fixture
def panel(page: Page, watched: Watched, lab: Lab) -> Page:
    """The page with JupyterLab and the panel open."""
    open_lab(page, lab.page_url)
    open_panel(page)
    return page


AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
