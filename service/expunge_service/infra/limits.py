"""The limits that no setting changes. docs/settings.md lists them; a test passes others."""

from __future__ import annotations

from dataclasses import dataclass

from expunge_service.infra.time import DAY_SECONDS


@dataclass(frozen=True)
class Limits:
    """Limits of one installation.

    Args:
        lease_seconds: after this silence a process counts as dead, and its work is claimed by another.
        sweep_seconds: how often the scheduler looks for work with a lost notification.
        disk_reserve_bytes: with less than this free on a disk of the service, ``expunge doctor`` fails.
        idempotency_seconds: how long an Idempotency-Key is remembered.
        body_bytes: the longest request body.
        sample_ids: the most sample ids in one request.
        rate_burst: the calls that a key may make at once before its rate holds.
        searches_per_minute: the ids that a key may search for, or estimate.
        vector_bytes: the most bytes of exact vectors that one generation may keep.
        large_request_seconds: how long a large request waits for a decision.
        distance_left: with this share of the distance to retraining, or more, left a method does not help on a model.
    """

    lease_seconds: float = 30.0
    sweep_seconds: float = 1.0
    disk_reserve_bytes: int = 1_000_000_000
    idempotency_seconds: float = DAY_SECONDS
    body_bytes: int = 1_048_576
    sample_ids: int = 10_000
    rate_burst: int = 2000
    searches_per_minute: int = 60
    vector_bytes: int = 64 * 2**30
    large_request_seconds: float = DAY_SECONDS
    distance_left: float = 0.7


LIMITS = Limits()
