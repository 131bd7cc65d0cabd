"""Who runs where, next to whom, and when. Pure: values in, values out."""

from __future__ import annotations

from horus_lab.policy.registry import DEFAULT, POLICIES, policy_named

__all__ = ["DEFAULT", "POLICIES", "policy_named"]
