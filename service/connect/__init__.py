"""Connectors: what other systems ask Expunge to delete, and what they are answered."""
