"""Module and batch -> graph features, under fake tensors, without a device.

Importing this package needs no torch; the functions import it when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horus_lab.graph.summary import summary

if TYPE_CHECKING:
    from horus_lab.graph.capturing import capture, capture_lightning, capture_step
    from horus_lab.graph.untouched import untouched_randomness

__all__ = ["capture", "capture_lightning", "capture_step", "summary", "untouched_randomness"]


def __getattr__(name: str) -> Any:
    if name in ("capture", "capture_lightning", "capture_step"):
        from horus_lab.graph import capturing

        return getattr(capturing, name)
    if name == "untouched_randomness":
        from horus_lab.graph import untouched

        return untouched.untouched_randomness
    raise AttributeError(f"module 'horus_lab.graph' has no attribute {name!r}")
