"""What can be set about a broker service, checked before anything is opened."""

from __future__ import annotations

import math

from msgspec import Struct, field

from horus_lab.broker.settings import BrokerSettings
from horus_lab.errors import ConfigurationError


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds that keep one caller, or all of them, from filling the broker.

    Attributes:
        waiting_calls: requests that may wait for the broker's thread.
        resumable_events: changes of jobs that a reader of the stream may have missed.
    """

    waiting_calls: int = 2000
    resumable_events: int = 5000


class Pace(Struct, frozen=True, kw_only=True):
    """How often things are done, all in seconds.

    Attributes:
        sample: between two looks at the devices.
        idle_sample: the same while nobody watches and no job waits or runs.
        probe_timeout: how long a look may take before the devices count as unknown.
        tick: between two checks of the broker's time limits.
        flush: how long a measurement may stay unwritten.
    """

    sample: float = 1.0
    idle_sample: float = 5.0
    probe_timeout: float = 10.0
    tick: float = 1.0
    flush: float = 5.0


class ServiceSettings(Struct, frozen=True, kw_only=True):
    """A broker service, described.

    Attributes:
        store_url: SQLAlchemy URL of the store.
        devices: `auto`, `nvml`, `cpu`, or simulated ones such as `sim:2xA100-80GB`.
        policy: the policy's name; empty: the usual one.
    """

    store_url: str
    devices: str = "auto"
    policy: str = ""
    pace: Pace = field(default_factory=Pace)
    limits: Limits = field(default_factory=Limits)
    broker: BrokerSettings = field(default_factory=BrokerSettings)

    def checked(self) -> ServiceSettings:
        """Itself.

        Raises:
            ConfigurationError: a number is out of bounds, with its name.
        """
        if not 0.5 <= self.pace.sample <= 60.0:
            raise ConfigurationError(
                f"Looking at the devices every {self.pace.sample:g} s is not possible.",
                hint="Set sample_seconds between 0.5 and 60.",
            )
        _positive("pace", self.pace)
        _positive("limits", self.limits)
        _positive("broker", self.broker)
        return self


def _positive(group: str, settings: Struct) -> None:
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ConfigurationError(
                f"{group}.{name} is {value!r}; expected a number above zero.",
                hint="Leave it out for the usual value.",
            )
