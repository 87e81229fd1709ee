"""One worker process: its name, its settings, where its data lie, and the queue through which it notifies others."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from celery import Celery

from expunge.service.infra.broker.notify import publisher
from expunge.service.infra.limits import LIMITS, Limits
from expunge.service.infra.settings import Settings
from expunge.workers.storage import Storage


@dataclass(frozen=True)
class Process:
    """``owner`` names the process in leases and heartbeats."""

    owner: str
    settings: Settings
    storage: Storage
    notifier: Celery
    limits: Limits = LIMITS

    @classmethod
    def of(cls, settings: Settings, limits: Limits = LIMITS) -> Process:
        """Open the process's storage and its queue. Raises Busy, and SettingsError where a secret is missing."""
        owner = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"
        return cls(owner, settings, Storage.of(settings), publisher(settings.broker_url), limits)
