"""How much residents of one device slow each other down. Pure."""

from __future__ import annotations

from horus_lab.interference.fitted import FittedInterference
from horus_lab.interference.protocol import InterferenceModel

__all__ = ["FittedInterference", "InterferenceModel"]
