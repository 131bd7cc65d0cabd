"""The wheel, built from the tree by way of the sdist, and clean environments to install it into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.environment import Environment

ROOT = Path(__file__).parents[2]
LABEXTENSION = ROOT / "jupyter_ext" / "labextension"
SIDEBAR_SOURCES = ("package.json", "yarn.lock", "jupyter_ext/ui/src", "jupyter_ext/ui/style")


def _newest(paths: list[Path]) -> float:
    files = [
        file
        for path in paths
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file()
    ]
    return max((file.stat().st_mtime for file in files), default=0.0)


@pytest.fixture(scope="session")
def built_sidebar() -> Path:
    """The built sidebar, as new as its sources."""
    marker = LABEXTENSION / "static" / "style.js"
    sources = _newest([ROOT / source for source in SIDEBAR_SOURCES])
    if not marker.exists() or _newest([LABEXTENSION]) < sources:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        for command in (["jlpm", "install", "--immutable"], ["jlpm", "build:prod"]):
            program = shutil.which(command[0], path=path)
            assert program is not None, "jlpm is needed: pip install jupyter-builder"
            subprocess.run(
                [program, *command[1:]], cwd=ROOT, env=os.environ | {"PATH": path}, check=True
            )
    return LABEXTENSION


@pytest.fixture(scope="session")
def distributions(built_sidebar: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was made of it."""
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", f"--outdir={folder}", str(ROOT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture(scope="session")
def wheel(distributions: Path) -> Path:
    """The wheel."""
    (found,) = distributions.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def make_environment(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Environment]:
    """Makes clean environments."""
    return lambda name: Environment(tmp_path_factory.mktemp(name) / "venv")
