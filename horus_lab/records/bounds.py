"""The bounds of everything that comes from outside, and the interval of a prediction."""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta, Struct

SCHEMA_VERSION = 1

MAX_BYTES = 2**53
MAX_SECONDS = 10 * 365 * 86400.0
MAX_FLOPS = 1e24

Bytes = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Count = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Flops = Annotated[float, Meta(ge=0.0, le=MAX_FLOPS)]
Seconds = Annotated[float, Meta(ge=0.0, le=MAX_SECONDS)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
ShortText = Annotated[str, Meta(max_length=200)]
LongText = Annotated[str, Meta(max_length=2000)]
Identifier = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._:-]+$")]


class Interval(Struct, frozen=True):
    """A predicted quantity as its 10th, 50th and 90th percentile."""

    p10: float
    p50: float
    p90: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.p10) and math.isfinite(self.p50) and math.isfinite(self.p90)):
            raise ValueError("an interval's percentiles must be finite")
        if not self.p10 <= self.p50 <= self.p90:
            raise ValueError("an interval's percentiles must not decrease")
