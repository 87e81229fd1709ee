"""Commands that speak with other systems."""
