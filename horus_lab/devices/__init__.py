"""Probes that list and read devices: NVML, the host's CPU, simulated ones."""
