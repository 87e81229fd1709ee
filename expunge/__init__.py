"""Online deletion requests for trained models: the version of its packages."""

__version__ = "0.3.0.dev0"
