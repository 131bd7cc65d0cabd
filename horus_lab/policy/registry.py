"""Policies by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from horus_lab.errors import ConfigurationError
from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.cluster import Policy
from horus_lab.policy.horus_lab_policy import HorusLabPolicy
from horus_lab.policy.ordering import lightest_order, submission_order
from horus_lab.policy.placing import by_cost_alone

DEFAULT = "horus-lab"


def _exclusive(interference: InterferenceModel) -> Policy:
    """Every job a device of its own, in a fair order: what people have without co-location."""
    return HorusLabPolicy(interference, name="exclusive", sharing=False)


def _fifo(interference: InterferenceModel) -> Policy:
    """Every job a device of its own, the oldest first, whatever does not fit is passed by.

    As Kubernetes' scheduler does with its default queue: a job that cannot be placed goes back, and
    the next is tried. Nobody is kept a place for, so a gang may wait for ever.
    """
    return HorusLabPolicy(
        interference,
        name="fifo",
        sharing=False,
        due_seconds=math.inf,
        order=lambda view, _now: submission_order(view.queue),
    )


def _horus(interference: InterferenceModel) -> Policy:
    """The paper's Horus: the lightest of the queue first, the cheapest device, five looked ahead.

    After the first author's public simulator: jobs by mean predicted utilization; of the first
    five the first that fits is placed, where more than 500 MiB stay free and fewer than three jobs
    are; cost as in `horus_cost`. Unlike there, and because the broker grants nothing else,
    everybody's bound on slowdown and the device's own margin hold too. Heavy jobs may wait for
    ever: the paper has no ageing.
    """
    return HorusLabPolicy(
        interference,
        name="horus",
        due_seconds=math.inf,
        order=lambda view, _now: lightest_order(view.queue),
        tier=by_cost_alone,
        most_residents=3,
        least_margin_bytes=500 * 2**20 + 1,
        most_misses=5,
    )


POLICIES: Mapping[str, Callable[[InterferenceModel], Policy]] = {
    DEFAULT: HorusLabPolicy,
    "exclusive": _exclusive,
    "fifo": _fifo,
    "horus": _horus,
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
