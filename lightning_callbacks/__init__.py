"""Horus Lab's hooks for training frameworks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_callbacks.admission import AdmissionCancelled, HorusWarning
    from lightning_callbacks.callback import HorusCallback

__all__ = ["AdmissionCancelled", "HorusCallback", "HorusWarning"]


def __getattr__(name: str) -> Any:
    """Import torch and Lightning only when a hook is used."""
    if name == "HorusCallback":
        from lightning_callbacks import callback

        return callback.HorusCallback
    if name in ("AdmissionCancelled", "HorusWarning"):
        from lightning_callbacks import admission

        return getattr(admission, name)
    raise AttributeError(f"module 'lightning_callbacks' has no attribute {name!r}")
