from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Scripted parts over a real SQLite file; every service it made is stopped afterwards."""
    made = World(tmp_path)
    yield made
    made.stop()
