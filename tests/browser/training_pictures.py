"""Pictures of the examples while they really train: `python -m tests.browser.training_pictures`.

A real JupyterLab on this machine's CPU. Three of the example notebooks train in kernels of their
own; the fourth is run in the browser, waits, is granted and finishes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from horus_lab.demo import KernelRun
from tests.browser.lab import ROOT, Lab
from tests.browser.page import open_browser, open_lab, open_panel

SHOWN = "transformer.ipynb"
OTHERS = ("mlp.ipynb", "cnn.ipynb", "rnn.ipynb")
PATIENCE_SECONDS = 300.0


class LabSessions:
    """What a `KernelRun` asks of a server, from a JupyterLab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.runtime = lab.home / "runtime"

    def start_session(self, name: str) -> dict[str, Any]:
        body = {"path": name, "name": name, "type": "notebook", "kernel": {"name": "python3"}}
        answer = self._lab.http.post("api/sessions", json=body)
        answer.raise_for_status()
        session: dict[str, Any] = answer.json()
        return session

    def end_session(self, session_id: str) -> None:
        self._lab.http.delete(f"api/sessions/{session_id}")


def main() -> None:
    """Make the pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    with tempfile.TemporaryDirectory(prefix="horus-training-") as home:
        lab = Lab(Path(home) / "ana", devices="cpu")
        try:
            for name in (SHOWN, *OTHERS):
                shutil.copy(ROOT / "examples" / name, lab.home / name)
            with open_browser() as browser:
                context = browser.new_context(viewport={"width": 1280, "height": 860})
                page = context.new_page()
                open_lab(page, lab.page_url.replace("/lab?", f"/lab/tree/{SHOWN}?"))
                open_panel(page)
                _train(lab, page, folder)
        finally:
            lab.close()


def _train(lab: Lab, page: Page, folder: Path) -> None:
    sessions: Any = LabSessions(lab)
    runs = [KernelRun(sessions, lab.home / name, exclusive=False, epochs=60) for name in OTHERS]
    for run in runs:
        run.start()
    _until(lambda: len(lab.jobs("running")) >= 1 and len(lab.jobs()) == len(OTHERS))
    page.locator(".lm-MenuBar-item", has_text="Run").first.click()
    page.locator(".lm-Menu-item", has_text="Run All Cells").first.click()
    _until(lambda: len(lab.jobs()) == len(OTHERS) + 1)
    time.sleep(8)
    page.screenshot(path=folder / "training-waits.png")
    _until(lambda: any(_is_shown(job) for job in lab.jobs("running")))
    time.sleep(12)
    page.screenshot(path=folder / "training-runs.png")
    _until(lambda: any(_is_shown(job) for job in lab.jobs("done")))
    time.sleep(6)
    page.screenshot(path=folder / "training-done.png")


def _is_shown(job: dict[str, Any]) -> bool:
    return bool(job["request"]["notebook"].endswith(SHOWN))


def _until(true: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError("the examples did not come so far")
        time.sleep(0.3)


if __name__ == "__main__":
    main()
