"""Reads the measured sets that the slowdown model is fitted on and held against."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from horus_lab.errors import InvalidRequest

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_COLUMNS = ("model", "dataset", "batch", "amp")


class Pairs(NamedTuple):
    """Measured pairs, two rows each and next to each other: one for each job.

    Attributes:
        load, other_load: own and the neighbour's utilization alone, 0-1, (rows,).
        bandwidth, other_bandwidth: memory-bandwidth utilization alone, 0-1, (rows,).
        speed: co-located speed over solo speed, at most 1, (rows,).
        models: (rows, 2): the row's model and its neighbour's.
    """

    load: Array
    other_load: Array
    bandwidth: Array
    other_bandwidth: Array
    speed: Array
    models: NDArray[np.str_]

    def rows(self, mask: Mask) -> Pairs:
        """The rows where the mask holds."""
        return Pairs(
            self.load[mask],
            self.other_load[mask],
            self.bandwidth[mask],
            self.other_bandwidth[mask],
            self.speed[mask],
            self.models[mask],
        )


def lucid_pairs(folder: Path) -> Pairs:
    """`solo.csv` and `pairs.csv` of the folder, joined. Speeds above 1 are noise and count as 1.

    Raises:
        InvalidRequest: a file or column is missing, a number is none, or no pair has both solo
            rows.
    """
    solo = {}
    for line, row in _rows(folder / "solo.csv", (*_COLUMNS, "gpu_util_pct", "mem_util_pct")):
        solo[_key(row, "")] = tuple(
            _number(row, column, folder / "solo.csv", line) / 100
            for column in ("gpu_util_pct", "mem_util_pct")
        )
    wanted = tuple(f"{column}{which}" for which in "12" for column in (*_COLUMNS, "relative_speed"))
    values, models = [], []
    for line, row in _rows(folder / "pairs.csv", wanted):
        keys = (_key(row, "1"), _key(row, "2"))
        if not all(key in solo for key in keys):
            continue
        for mine, other in ((0, 1), (1, 0)):
            speed = _number(row, f"relative_speed{mine + 1}", folder / "pairs.csv", line)
            if speed <= 0:
                raise InvalidRequest(f"{folder / 'pairs.csv'}, line {line}: a speed of {speed}.")
            (u, m), (v, n) = solo[keys[mine]], solo[keys[other]]
            values.append((min(1.0, u), min(1.0, v), min(1.0, m), min(1.0, n), min(1.0, speed)))
            models.append((keys[mine][0], keys[other][0]))
    if not values:
        raise InvalidRequest(
            f"No pair in {folder} has both its jobs in solo.csv.",
            hint="Both files name a job by model, dataset, batch and amp.",
        )
    u, v, m, n, speeds = np.array(values).T
    return Pairs(u, v, m, n, speeds, np.array(models))


class GavelPairs(NamedTuple):
    """Speeds kept by both jobs of co-located pairs on one GPU model, (pairs, 2)."""

    gpu: str
    speeds: Array


def gavel_pairs(folder: Path, campaign: str = "motivation") -> list[GavelPairs]:
    """`pairs.csv` of the folder by GPU model; pairs that did not fit (speed 0) are left out."""
    found: dict[str, list[tuple[float, float]]] = {}
    path = folder / "pairs.csv"
    for line, row in _rows(path, ("file", "gpu", "norm1", "norm2", "scale1", "scale2")):
        # Some fields are empty where a job could not run beside the other.
        if row["file"] != campaign or not row["norm1"] or not row["norm2"]:
            continue
        both = (_number(row, "norm1", path, line), _number(row, "norm2", path, line))
        if min(both) > 0:
            found.setdefault(row["gpu"], []).append(both)
    return [
        GavelPairs(gpu, np.minimum(1.0, np.array(speeds))) for gpu, speeds in sorted(found.items())
    ]


def _rows(path: Path, columns: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise InvalidRequest(f"{path} has no column {', '.join(missing)}.")
            return [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be read: {error.strerror}.",
            hint="docs/scheduling.md says what the folder holds.",
        ) from error


def _number(row: dict[str, str], column: str, path: Path, line: int) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        value = float("nan")
    if not np.isfinite(value) or value < 0:
        raise InvalidRequest(f"{path}, line {line}: {column} is {row[column]!r}, not a number.")
    return value


def _key(row: dict[str, str], which: str) -> tuple[str, ...]:
    return tuple(row[f"{column}{which}"] for column in _COLUMNS)
