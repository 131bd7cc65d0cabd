"""Clean virtual environments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class Environment:
    """A virtual environment whose programs see no Node and nothing of this tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)

    def run(self, *command: str) -> str:
        """The output of a program of the environment; it must succeed."""
        done = subprocess.run(
            [str(self.path / "bin" / command[0]), *command[1:]],
            env=self.variables(),
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
        return done.stdout

    def variables(self) -> dict[str, str]:
        """A fresh HOME, and on PATH this environment alone."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in ("LANG", "PIP_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
            or name.lower().endswith("_proxy")
        }
        return kept | {"HOME": str(self.path), "PATH": str(self.path / "bin"), "TERM": "dumb"}

    def install(self, *what: str) -> None:
        """Install from the registry, or a file."""
        self.run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)
