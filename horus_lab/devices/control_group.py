"""What the control groups of this process allow it, and what is used of that.

Version 2 and version 1 hierarchies. A limit anywhere on the way up holds, so the tightest counts.
Inside a container the path that the kernel tells may be the host's; then the mount's root is the
container's own group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 2**60  # version 1 writes "no limit" as the largest multiple of a page


class ControlGroup:
    """This process's control groups.

    Args:
        proc: the proc file system.
        mount: where the control groups are mounted.
    """

    def __init__(self, proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> None:
        paths = _paths(proc / "self/cgroup")
        self._unified = _upwards(mount, paths.get("", "/"))
        self._memory = _upwards(mount / "memory", paths.get("memory", "/"))
        self._cpu = _upwards(mount / "cpu", paths.get("cpu", "/"))
        self._accounting = _upwards(mount / "cpuacct", paths.get("cpuacct", "/"))

    def memory_limit(self) -> int | None:
        """Bytes that the tightest group allows; `None` where there is no limit."""
        found = self._tightest_memory()
        return None if found is None else found[0]

    def memory_used(self) -> int | None:
        """Bytes charged to the group with the tightest limit, less page cache that can be dropped.

        `None` where there is no limit, or it cannot be read.
        """
        found = self._tightest_memory()
        if found is None:
            return None
        _, folder, version = found
        current = "memory.current" if version == 2 else "memory.usage_in_bytes"
        cache = "inactive_file" if version == 2 else "total_inactive_file"
        used = _number(folder / current)
        if used is None:
            return None
        return max(0, used - (_field(folder / "memory.stat", cache) or 0))

    def cpu_limit(self) -> float | None:
        """Cores' worth of time that the tightest quota allows; `None` where there is none."""
        limits = [limit for folder in self._unified if (limit := _quota(folder))]
        for folder in self._cpu:
            quota = _number(folder / "cpu.cfs_quota_us")
            period = _number(folder / "cpu.cfs_period_us")
            if quota is not None and quota > 0 and period:
                limits.append(quota / period)
        return min(limits, default=None)

    def cpu_seconds(self) -> float | None:
        """CPU time that the group with this process has taken so far; `None`: not told."""
        for folder in self._unified:
            microseconds = _field(folder / "cpu.stat", "usage_usec")
            if microseconds is not None:
                return microseconds / 1e6
        for folder in self._accounting:
            nanoseconds = _number(folder / "cpuacct.usage")
            if nanoseconds is not None:
                return nanoseconds / 1e9
        return None

    def _tightest_memory(self) -> tuple[int, Path, int] | None:
        found: list[tuple[int, Path, int]] = []
        for folders, name, version in (
            (self._unified, "memory.max", 2),
            (self._memory, "memory.limit_in_bytes", 1),
        ):
            for folder in folders:
                limit = _number(folder / name)
                if limit is not None and 0 < limit < _UNLIMITED:
                    found.append((limit, folder, version))
        return min(found, key=lambda one: one[0], default=None)


def _paths(file: Path) -> dict[str, str]:
    """Controller -> path; the version 2 hierarchy's is the empty name."""
    paths: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in file.read_text(errors="replace").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            for controller in controllers.split(","):
                paths[controller] = path
    return paths


def _upwards(mount: Path, path: str) -> tuple[Path, ...]:
    """The group's folder and those above it, up to the mount; those that exist."""

    def folders() -> Iterator[Path]:
        place = Path("/") / path.lstrip("/")
        if ".." not in place.parts:
            for one in (place, *place.parents):
                yield mount / one.relative_to("/")
        yield mount

    return tuple(dict.fromkeys(folder for folder in folders() if folder.is_dir()))


def _quota(folder: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None
    return None


def _number(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return None


def _field(file: Path, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return None
