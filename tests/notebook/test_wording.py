"""Numbers as words."""

from __future__ import annotations

import pytest

from horus_lab.errors import InvalidRequest
from horus_lab.notebook import wording
from horus_lab.records import Interval


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 * 2**20, "3.0 MiB"),
        (int(2.44 * 2**30), "2.4 GiB"),
        (200 * 2**30, "200 GiB"),
    ],
)
def test_bytes_are_read_in_binary_units_and_unknown_is_never_zero(
    count: float | None, text: str
) -> None:
    assert wording.bytes_text(count) == text


def test_an_interval_names_its_unit_once_where_both_ends_share_it() -> None:
    gib = 2**30
    assert wording.bytes_range(Interval(1.2 * gib, 1.4 * gib, 1.6 * gib)) == "1.2–1.6 GiB"
    assert wording.bytes_range(Interval(0.5 * gib, gib, 2 * gib)) == "512 MiB–2.0 GiB"
    assert wording.bytes_range(Interval(gib, gib, gib)) == "1.0 GiB"
    assert wording.percent_range(Interval(0.5, 0.6, 0.71)) == "50–71 %"
    assert wording.percent_range(None) == "unknown"
    assert wording.duration_range(Interval(12, 60, 240)) == "12 s–4 min"
    assert wording.duration_range(Interval(12, 20, 25)) == "12–25 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (0, "0 ms"),
        (0.0123, "12 ms"),
        (4.4, "4 s"),
        (89, "89 s"),
        (180, "3 min"),
        (9000, "2.5 h"),
        (259200, "3 d"),
    ],
)
def test_durations_are_read_in_the_unit_people_would_say(seconds: float | None, text: str) -> None:
    assert wording.duration_text(seconds) == text


def test_a_long_line_is_broken_at_its_semicolons_and_loses_nothing() -> None:
    text = "Horus: net waits, place 2; CPU would slow b by 31 %; expected in 5 s; waited 3 s"
    rows = wording.rows_of(text, width=40)
    assert rows == [
        "Horus: net waits, place 2",
        "CPU would slow b by 31 %",
        "expected in 5 s; waited 3 s",
    ]
    assert "; ".join(rows) == text
    assert wording.rows_of("short") == ["short"]


@pytest.mark.parametrize(
    ("text", "count"),
    [("4GiB", 4 * 2**30), ("500MB", 500_000_000), ("4e9", 4_000_000_000), (" 1.5 kib ", 1536)],
)
def test_memory_is_written_as_people_write_it(text: str, count: int) -> None:
    assert wording.parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-4GiB", "4 GiBs", "nan", "1e400", "0", "inf GiB"])
def test_what_is_not_an_amount_of_memory_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest):
        wording.parse_bytes(text)
