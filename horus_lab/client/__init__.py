"""The kernel's side: discovery, requests, leases, heartbeats. Imports no torch."""
