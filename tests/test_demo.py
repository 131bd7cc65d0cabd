"""The demonstration: the examples in real kernels of a real server, through one broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = [pytest.mark.server, pytest.mark.timeout(500)]


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "horus_lab.cli", "demo", "--json", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=480,
    )


def rows(finished: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert finished.returncode == 0, finished.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(finished.stdout)
    assert {row["notebook"] for row in found} == {
        "mlp.ipynb",
        "cnn.ipynb",
        "rnn.ipynb",
        "transformer.ipynb",
    }
    assert {row["outcome"] for row in found} == {"done"}
    return found


def test_on_the_cpu_each_example_is_predicted_measured_and_done() -> None:
    finished = demo("--devices", "cpu", "--no-reference", "--epochs", "4")
    found = rows(finished)
    assert not any(row["simulated"] for row in found)
    assert not any(row["predicted_memory"] == "unknown" for row in found)
    assert not any(row["measured_memory"] == "unknown" for row in found)
    # Four do not fit beside each other within their bounds: somebody waited, and was told why.
    assert any(row["waited"] != "no" for row in found)
    assert "waits, place 1" in finished.stderr


def test_on_simulated_devices_everything_is_marked_so() -> None:
    found = rows(demo("--devices", "sim:2xA100-80GB", "--no-reference", "--epochs", "2"))
    assert all(row["simulated"] and "(SIM)" in row["device"] for row in found)
    # Small models share large devices: nobody waits, and two devices hold four jobs.
    assert {row["waited"] for row in found} == {"no"}
    assert len({row["device"] for row in found}) == 2


def test_a_folder_without_the_examples_is_named(tmp_path: Path) -> None:
    finished = demo("--examples", str(tmp_path))
    assert finished.returncode == 1
    assert "mlp.ipynb" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_devices_that_do_not_exist_are_said_and_nothing_hangs() -> None:
    finished = demo("--devices", "sim:3xNothing")
    assert finished.returncode == 1
    assert "Nothing" in finished.stderr
    assert "Traceback" not in finished.stderr
