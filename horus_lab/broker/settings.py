"""The broker's limits. No time limit frees memory by itself."""

from __future__ import annotations

from msgspec import Struct


class BrokerSettings(Struct, frozen=True, kw_only=True):
    """Times are in seconds.

    Attributes:
        confirm_seconds: a grant that its client does not take for so long is withdrawn, and the
            job keeps its place. Safe: a client may use the device only after its confirmation
            was acknowledged, and a confirmation with a withdrawn fence is refused.
        absent_seconds: a waiting client that has not asked for so long is passed over.
        suspect_seconds: a running job that has not beaten for so long is suspect; its
            reservation is untouched.
        reading_seconds: a reading older than this says nothing: the device's use is unknown.
        usage_half_life_seconds: how fast an owner's past use is forgotten in the fair share.
        solo_seconds: a rate counts as known once it was measured for so long.
        save_seconds: measurements alone are handed to the store this often at most.
        reason_seconds: changing numbers in an otherwise unchanged reason are told this often at
            most.
        max_queued: the most jobs that may wait at once.
        max_queued_per_owner: the most of them that one owner may have.
        ended_kept: how many ended jobs are remembered for repeats of old requests.
    """

    confirm_seconds: float = 60.0
    absent_seconds: float = 30.0
    suspect_seconds: float = 30.0
    reading_seconds: float = 30.0
    usage_half_life_seconds: float = 6 * 3600.0
    solo_seconds: float = 2.0
    save_seconds: float = 10.0
    reason_seconds: float = 5.0
    max_queued: int = 10_000
    max_queued_per_owner: int = 1_000
    ended_kept: int = 1_000
