"""Horus Lab: shared GPUs for notebooks, predicted, co-located and queued."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
