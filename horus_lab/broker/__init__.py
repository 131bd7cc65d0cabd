"""The broker as a pure state machine: events in, commands out."""
