"""Recipes to start from: ``expunge init`` copies them."""
