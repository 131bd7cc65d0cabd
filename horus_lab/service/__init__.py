"""Drives the broker: clock, store, probes, sampler, recovery."""
