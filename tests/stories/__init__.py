"""Whole services as processes. A package, so that a fixture of its scope ends with its tests."""
