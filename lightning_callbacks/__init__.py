"""Horus Lab's hooks for training frameworks."""
