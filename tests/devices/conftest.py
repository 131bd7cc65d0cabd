"""Real processes for the tests of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

WAIT_SECONDS = 20.0


def until(condition: Callable[[], object], *, seconds: float = WAIT_SECONDS) -> None:
    """Wait for the condition; the bound only keeps a failing test from hanging."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)


class Family:
    """A parent process that forks children; all of them only sleep."""

    def __init__(self, folder: Path, *, children: int, new_session: bool, deep: bool) -> None:
        self._file = folder / "pids"
        program = _DEEP if deep else _FLAT
        self.parent = subprocess.Popen(
            [sys.executable, "-c", program, str(self._file), str(children)],
            start_new_session=new_session,
        )
        until(lambda: self._file.exists() and self._file.read_text().endswith("."))
        self.children = [int(pid) for pid in self._file.read_text()[:-1].split()]

    def kill_parent(self) -> None:
        self.parent.send_signal(signal.SIGKILL)
        self.parent.wait()

    def kill_children(self) -> None:
        for pid in self.children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def end(self) -> None:
        if self.parent.poll() is None:
            self.kill_parent()
        self.kill_children()


_FLAT = """
import os, sys, time
pids = []
for _ in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        time.sleep(120)
        os._exit(0)
    pids.append(pid)
open(sys.argv[1], "w").write(" ".join(map(str, pids)) + ".")
time.sleep(120)
"""

# The child in between ends at once, so that the grandchild is nobody's child that we know.
_DEEP = """
import os, sys, time
read, write = os.pipe()
between = os.fork()
if between == 0:
    pid = os.fork()
    if pid == 0:
        time.sleep(120)
        os._exit(0)
    os.write(write, str(pid).encode())
    os._exit(0)
os.waitpid(between, 0)
open(sys.argv[1], "w").write(os.read(read, 20).decode() + ".")
time.sleep(120)
"""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Callable[..., Family]]:
    """Makes families, and ends them."""
    made: list[Family] = []

    def make(*, children: int = 2, new_session: bool = False, deep: bool = False) -> Family:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Family(folder, children=children, new_session=new_session, deep=deep))
        return made[-1]

    yield make
    for one in made:
        one.end()
