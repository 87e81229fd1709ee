"""Online deletion requests for trained models: one name for the packages ``service``, ``workers`` and ``migrations``.

Their folders lie beside this one, and the links here give them a name that no folder of a user takes away.
"""

__version__ = "0.3.0.dev0"
