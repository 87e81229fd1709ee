"""What is shown on a card: ``python -m tests.card``."""
