"""Horus Lab: shared GPUs for notebooks, predicted, co-located and queued.

    import horus_lab

    features = horus_lab.capture(model, batch)           # what a step needs, without a device
    with horus_lab.slot(model, batch) as slot:           # a share of a device
        model.to(slot.device)

`%load_ext horus_lab` brings the `%horus` magic; `lightning_callbacks.HorusCallback` is the
callback for Lightning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horus_lab.client import HorusClient
from horus_lab.graph import summary
from horus_lab.slot import Slot, slot

if TYPE_CHECKING:
    from horus_lab.graph import capture

__version__ = "0.1.0"

__all__ = [
    "HorusClient",
    "Slot",
    "__version__",
    "capture",
    "load_ipython_extension",
    "slot",
    "summary",
]


def __getattr__(name: str) -> Any:
    """Import torch only when something is captured."""
    if name == "capture":
        from horus_lab import graph

        return graph.capture
    raise AttributeError(f"module 'horus_lab' has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext horus_lab` registers `%horus` and `%%horus`."""
    from horus_lab.notebook.magic import load_ipython_extension as register

    register(shell)
