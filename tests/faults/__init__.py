"""Attacks on what a 202 and a deletion promise. ``python -m tests.faults`` runs them all and ends with one table."""
