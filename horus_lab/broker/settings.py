"""The broker's time limits. None of them frees memory by itself."""

from __future__ import annotations

from msgspec import Struct


class BrokerSettings(Struct, frozen=True, kw_only=True):
    """All in seconds.

    Attributes:
        confirm_seconds: a grant that its client does not take for so long is withdrawn, and the
            job keeps its place. Safe: a client may use the device only after its confirmation
            was acknowledged, and a confirmation with a withdrawn fence is refused.
        absent_seconds: a waiting client that has not asked for so long is passed over.
        suspect_seconds: a running job that has not beaten for so long is suspect; its
            reservation is untouched.
        usage_half_life_seconds: how fast an owner's past use is forgotten in the fair share.
        solo_seconds: a rate counts as known once it was measured for so long.
    """

    confirm_seconds: float = 60.0
    absent_seconds: float = 30.0
    suspect_seconds: float = 30.0
    usage_half_life_seconds: float = 6 * 3600.0
    solo_seconds: float = 2.0
