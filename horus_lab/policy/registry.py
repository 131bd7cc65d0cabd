"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from horus_lab.errors import ConfigurationError
from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.cluster import Policy
from horus_lab.policy.horus_lab_policy import HorusLabPolicy

DEFAULT = "horus-lab"


def _exclusive(interference: InterferenceModel) -> Policy:
    """Every job a device of its own, in a fair order: what people have without co-location."""
    return HorusLabPolicy(interference, name="exclusive", sharing=False)


POLICIES: Mapping[str, Callable[[InterferenceModel], Policy]] = {
    DEFAULT: HorusLabPolicy,
    "exclusive": _exclusive,
}


def policy_named(name: str, interference: InterferenceModel) -> Policy:
    """The policy with this name; an empty name is the default.

    Raises:
        ConfigurationError: there is none.
    """
    try:
        make = POLICIES[name or DEFAULT]
    except KeyError:
        raise ConfigurationError(
            f"There is no policy {name!r}.", hint=f"Known: {', '.join(sorted(POLICIES))}."
        ) from None
    return make(interference)
