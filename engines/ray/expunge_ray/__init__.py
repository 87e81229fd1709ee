"""Trains the parts of Expunge's models on a Ray cluster: the runner ``ray``."""
