"""A light client of Expunge: ask for deletions, verify what comes back, follow a model's current version.

It needs ``httpx`` and ``cryptography`` and nothing of the service.
"""

from expunge_client.answers import DeletionRequest, Estimate, Findings, ModelPart, Outcome, Remedy, Version
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
    "verify_certificate",
    "verify_webhook",
]
