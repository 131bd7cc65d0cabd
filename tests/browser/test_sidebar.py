"""The sidebar in a real JupyterLab, under a prefix, with real runs of a real broker."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from playwright.sync_api import Page, expect

from tests.browser.conftest import AXE, Watched
from tests.browser.lab import Lab
from tests.browser.page import THEMES, Theme, open_lab, open_panel, set_theme

pytestmark = pytest.mark.browser

ATTACKS = (
    '<img src=x onerror="window.hacked = 1">',
    "<script>window.hacked = 1</script>",
    "{{constructor.constructor('window.hacked = 1')()}}",
    "javascript:window.hacked=1",
    "\u202egnp.exe <b>bold</b> &lt;i&gt;",
)


def test_devices_show_who_is_on_them_as_it_happens(panel: Page, lab: Lab, watched: Watched) -> None:
    cards = panel.locator(".horus-Device")
    expect(cards).to_have_count(2)
    expect(cards.first).to_contain_text("SIM")
    expect(cards.first).to_contain_text("Nobody holds a slot here.")

    lab.train("Tokens", gib=20, utilization=0.4, notebook="studies/tokens.ipynb")

    resident = panel.locator(".horus-Resident", has_text="Tokens")
    expect(resident).to_contain_text("ana · tokens.ipynb")
    expect(resident).to_contain_text("20 GiB")
    expect(resident).to_contain_text("bound 1.25×")
    expect(panel.locator(".horus-Memory-resident")).to_have_count(1)
    expect(panel.locator(".horus-Connection")).to_have_text("Live")
    assert watched.errors == []


def test_everything_is_asked_below_the_prefix(panel: Page, lab: Lab, watched: Watched) -> None:
    expect(panel.locator(".horus-Device")).to_have_count(2)
    asked = [url for url in watched.requests if "/horus/" in url]
    assert any(url.startswith("ws") for url in asked)
    prefix = urlsplit(lab.url).path
    assert all(urlsplit(url).path.startswith(prefix + "horus/api/v1/") for url in asked)


def test_a_waiting_job_tells_place_and_reason_and_leaves_when_it_is_cancelled(
    panel: Page, lab: Lab
) -> None:
    for name in ("First", "Second"):
        lab.train(name, gib=70, utilization=0.5)
        expect(panel.locator(".horus-Resident", has_text=name)).to_be_visible()
    waiting = lab.train("Third", gib=70, utilization=0.5)

    row = panel.locator(".horus-QueueRow", has_text="Third")
    expect(row.locator(".horus-QueueRow-place")).to_have_text("1")
    expect(row).to_contain_text(re.compile(r"GPU 0.*lacks .* GiB"))
    expect(panel.locator(".horus-Status")).to_contain_text("place 1")

    panel.get_by_role("button", name="Cancel Third").click()

    expect(row).to_have_count(0)
    expect(panel.get_by_text("Nobody waits.")).to_be_visible()
    assert waiting.wait(20) != 0  # its client was told


def test_a_running_job_is_stopped_only_after_a_question(panel: Page, lab: Lab) -> None:
    run = lab.train("Careful", gib=10, utilization=0.3, rate=50)
    cancel = panel.get_by_role("button", name="Cancel Careful")

    cancel.click()
    panel.get_by_role("button", name="Keep running").click()
    expect(cancel).to_be_enabled()
    assert run.poll() is None

    cancel.click()
    panel.get_by_role("button", name="Stop the run").click()
    expect(panel.locator(".horus-Job", has_text="Careful")).to_have_count(0, timeout=30_000)
    assert run.wait(20) == 0
    panel.get_by_role("button", name="Recent runs").click()
    ended = panel.locator(".horus-HistoryRow", has_text="Careful").first
    expect(ended).to_contain_text("cancelled")


def test_a_job_tells_its_story(panel: Page, lab: Lab) -> None:
    lab.train("Storied", gib=10, utilization=0.3)
    job = panel.locator(".horus-Job", has_text="Storied")
    job.get_by_role("button", name="Story").click()
    expect(job.locator(".horus-Story li").first).to_be_visible()
    expect(job.locator(".horus-Story")).to_contain_text("running")


def test_a_kernels_slot_shows_and_its_death_frees_the_device(panel: Page, lab: Lab) -> None:
    body = {"path": "k.ipynb", "name": "k.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
    answer = lab.http.post("api/sessions", json=body)
    assert answer.status_code == 201, answer.text
    kernel = answer.json()["kernel"]["id"]
    client = BlockingKernelClient()
    client.load_connection_file(str(lab.home / "runtime" / f"kernel-{kernel}.json"))
    client.start_channels()
    client.wait_for_ready(timeout=60)
    client.execute(
        "import horus_lab, time\n"
        "with horus_lab.slot(memory='8GiB', utilization=0.3, name='In a kernel') as slot:\n"
        "    for step in range(10**6):\n"
        "        time.sleep(0.05); slot.step()\n"
    )
    resident = panel.locator(".horus-Resident", has_text="In a kernel")
    expect(resident).to_contain_text("k.ipynb", timeout=60_000)

    assert lab.http.delete(f"api/kernels/{kernel}").status_code == 204
    expect(resident).to_have_count(0, timeout=60_000)
    client.stop_channels()


def test_names_that_are_attacks_stay_text(panel: Page, lab: Lab, watched: Watched) -> None:
    for attack in ATTACKS:
        lab.train(attack, gib=2, utilization=0.05, notebook=attack)
    for attack in ATTACKS:
        expect(panel.locator(".horus-Job .horus-Name", has_text=attack)).to_have_text(attack)
    assert panel.evaluate("window.hacked") is None
    assert panel.locator("#horus-lab-panel :is(img, script, b, i)").count() == 0
    assert watched.errors == []


def test_the_palette_shows_the_panel(page: Page, lab: Lab) -> None:
    open_lab(page, lab.page_url)
    expect(page.locator("#horus-lab-panel")).to_be_hidden()
    page.locator(".lm-MenuBar-item", has_text="View").click()
    page.locator(".lm-Menu-item", has_text="Activate Command Palette").click()
    page.locator("#modal-command-palette input").fill("horus show panel")
    page.keyboard.press("Enter")
    expect(page.locator("#horus-lab-panel")).to_be_visible()


def test_where_websockets_are_blocked_the_broker_is_asked_instead(page: Page, lab: Lab) -> None:
    page.add_init_script(
        """
        const Real = window.WebSocket;
        window.WebSocket = class extends Real {
          constructor(url, protocols) {
            super(String(url).includes('/horus/') ? 'ws://127.0.0.1:9/' : url, protocols);
          }
        };
        """
    )
    open_lab(page, lab.page_url)
    open_panel(page)
    expect(page.locator(".horus-Connection")).to_have_text("Every few seconds", timeout=30_000)
    lab.train("Polled", gib=10, utilization=0.3)
    expect(page.locator(".horus-Resident", has_text="Polled")).to_be_visible()


@pytest.mark.parametrize("theme", list(THEMES))
def test_axe_finds_nothing_in_either_theme(panel: Page, lab: Lab, theme: Theme) -> None:
    for name in ("First", "Second", "Third"):
        lab.train(name, gib=70, utilization=0.5)
    expect(panel.locator(".horus-QueueRow")).to_have_count(1)
    set_theme(panel, theme)
    panel.add_script_tag(path=str(AXE))
    found = panel.evaluate(
        "async () => (await axe.run('#horus-lab-panel')).violations"
        ".map(v => [v.id, v.nodes.map(n => n.html + ' ' + n.failureSummary)])"
    )
    assert found == []


def test_a_server_that_goes_and_comes_back_is_followed(panel: Page, lab: Lab) -> None:
    lab.train("Lasting", gib=10, utilization=0.3)
    resident = panel.locator(".horus-Resident", has_text="Lasting")
    expect(resident).to_be_visible()

    lab.stop()
    expect(panel.locator(".horus-Connection")).to_have_text("Not connected", timeout=30_000)
    expect(panel.locator(".horus-Trouble")).to_contain_text("The Jupyter server does not answer.")
    expect(resident).to_be_visible()

    lab.start()
    expect(panel.locator(".horus-Connection")).to_have_text("Live", timeout=45_000)
    expect(resident).to_be_visible()
