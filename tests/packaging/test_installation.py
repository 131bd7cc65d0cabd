"""The wheel in clean environments without Node."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.environment import Environment

pytestmark = pytest.mark.packaging

TOKEN = "a-token"


@pytest.fixture(scope="module")
def kernel_side(make_environment: Callable[[str], Environment], wheel: Path) -> Environment:
    """An environment with the base install: what a kernel needs."""
    environment = make_environment("kernel")
    environment.install(str(wheel))
    return environment


@pytest.fixture(scope="module")
def server_side(make_environment: Callable[[str], Environment], wheel: Path) -> Environment:
    """An environment with the server's extra."""
    environment = make_environment("server")
    environment.install(f"{wheel}[server]")
    return environment


def test_the_base_install_imports_no_server_and_no_torch(kernel_side: Environment) -> None:
    told = kernel_side.run(
        "python",
        "-c",
        "import sys, json, horus_lab, horus_lab.client, horus_lab.records, lightning_callbacks;"
        "heavy = {'torch', 'tornado', 'jupyter_server', 'jupyterlab', 'sqlalchemy', 'pynvml',"
        " 'numpy', 'lightning', 'pytorch_lightning', 'sklearn'};"
        "print(json.dumps(sorted(heavy & sys.modules.keys())))",
    )
    assert json.loads(told) == []


def test_the_base_install_has_the_command_and_the_magic(kernel_side: Environment) -> None:
    assert "horus" in kernel_side.run("horus", "--help")
    told = kernel_side.run(
        "python",
        "-c",
        "from IPython.core.interactiveshell import InteractiveShell as S;"
        "s = S.instance(); s.run_line_magic('load_ext', 'horus_lab');"
        "print('horus' in s.magics_manager.magics['line'])",
    )
    assert told.strip().endswith("True")


def test_the_three_packages_belong_to_the_distribution_alone(kernel_side: Environment) -> None:
    told = kernel_side.run(
        "python",
        "-c",
        "import json; from importlib.metadata import packages_distributions as p; d = p();"
        "print(json.dumps([d.get(n) for n in"
        " ('horus_lab', 'jupyter_ext', 'lightning_callbacks')]))",
    )
    assert json.loads(told) == [["horus-lab"]] * 3


def test_jupyter_finds_both_extensions_enabled(server_side: Environment) -> None:
    servers = server_side.run("jupyter", "server", "extension", "list")
    assert re.search(r"jupyter_ext enabled", _plain(servers))
    assert re.search(r"jupyter_ext \S*\s*OK", _plain(servers))
    labs = _plain(server_side.run("jupyter", "labextension", "list"))
    (line,) = [line for line in labs.splitlines() if "horus-lab" in line]
    assert "enabled OK" in line
    assert "(python, horus-lab)" in line


@pytest.fixture(scope="module")
def running(server_side: Environment) -> Iterator[str]:
    """The address of a JupyterLab that was started as a person would: with no settings of ours."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = server_side.path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                str(server_side.path / "bin" / "jupyter"),
                "lab",
                "--no-browser",
                "--allow-root",
                f"--ServerApp.port={port}",
                f"--IdentityProvider.token={TOKEN}",
            ],
            env=server_side.variables(),
            cwd=server_side.path,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}/"
    try:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(OSError):
                _get(address + "horus/api/v1/health")
                break
            time.sleep(0.2)
        else:
            raise AssertionError(log.read_text())
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def test_the_installed_server_has_a_broker_with_a_device(running: str) -> None:
    assert json.loads(_get(running + "horus/api/v1/health"))["devices"] >= 1


def test_the_installed_server_serves_the_sidebar(running: str) -> None:
    page = _get(running + "lab").decode()
    start = page.index('id="jupyter-config-data"')
    described = json.loads(page[page.index(">", start) + 1 : page.index("</script>", start)])
    (extension,) = [
        each for each in described["federated_extensions"] if each["name"] == "horus-lab"
    ]
    script = _get(f"{running}lab/extensions/horus-lab/{extension['load']}")
    assert b"horus-lab" in script


def _get(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": f"token {TOKEN}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=20) as answer:
        body: bytes = answer.read()
        return body


def _plain(text: str) -> str:
    """Without terminal colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
