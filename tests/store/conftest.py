from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from horus_lab.store import SqlStore


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a store lies in a test; nothing is there yet."""
    return tmp_path / "data" / "horus.sqlite3"


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite:///{file}"


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    opened = SqlStore.open(url)
    yield opened
    opened.close()
