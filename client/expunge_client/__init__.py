"""A light client of Expunge: ask for deletions, verify what comes back, follow a model's current version.

It needs ``httpx`` and ``cryptography`` and nothing of the service. A name is imported where it is first asked for: a
process that needs the rules of spelling alone, as the service's API does, starts without an HTTP client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from expunge_client.answers import DeletionRequest, Estimate, Findings, ModelPart, Outcome, Remedy, Version
    from expunge_client.archives import archive_digests, unpack_archive
    from expunge_client.certificates import Verified, verify_certificate
    from expunge_client.client import AsyncExpunge, Expunge
    from expunge_client.errors import ExpungeError, NotAuthentic, NotCompleted, Refused, Unreachable
    from expunge_client.follower import Follower, Served
    from expunge_client.webhooks import verify_webhook

__all__ = [
    "AsyncExpunge",
    "DeletionRequest",
    "Estimate",
    "Expunge",
    "ExpungeError",
    "Findings",
    "Follower",
    "ModelPart",
    "NotAuthentic",
    "NotCompleted",
    "Outcome",
    "Refused",
    "Remedy",
    "Served",
    "Unreachable",
    "Verified",
    "Version",
    "archive_digests",
    "unpack_archive",
    "verify_certificate",
    "verify_webhook",
]

_MODULES = {
    "DeletionRequest": "answers",
    "Estimate": "answers",
    "Findings": "answers",
    "ModelPart": "answers",
    "Outcome": "answers",
    "Remedy": "answers",
    "Version": "answers",
    "archive_digests": "archives",
    "unpack_archive": "archives",
    "Verified": "certificates",
    "verify_certificate": "certificates",
    "AsyncExpunge": "client",
    "Expunge": "client",
    "ExpungeError": "errors",
    "NotAuthentic": "errors",
    "NotCompleted": "errors",
    "Refused": "errors",
    "Unreachable": "errors",
    "Follower": "follower",
    "Served": "follower",
    "verify_webhook": "webhooks",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
