"""One worker process: its name, its settings, where its data lie, and the queue through which it notifies others."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from celery import Celery

from expunge_service.infra.broker.notify import publisher
from expunge_service.infra.limits import LIMITS, Limits
from expunge_service.infra.settings import Settings
from expunge_service.queue import Serves
from expunge_workers.runtime.machine import Machine, machine_of
from expunge_workers.storage import Storage
from unlearning.accounting.policy import ANYWHERE


@dataclass(frozen=True)
class Process:
    """``owner`` names the process in leases and heartbeats."""

    owner: str
    settings: Settings
    storage: Storage
    notifier: Celery
    machine: Machine
    limits: Limits = LIMITS

    @property
    def places(self) -> frozenset[str]:
        """Return the places that the process is: any, the class of its device, and its groups."""
        return self.settings.groups | {ANYWHERE, self.machine.kind}

    @property
    def serves(self) -> Serves:
        return Serves(self.settings.served_tenants, self.places, self.machine.memory)

    @classmethod
    def of(cls, settings: Settings, limits: Limits = LIMITS) -> Process:
        """Open the process's storage and its queue. Raises Busy, and SettingsError where a secret is missing."""
        owner = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"
        notifier = publisher(settings.broker_url)
        return cls(owner, settings, Storage.of(settings), notifier, machine_of(settings.device), limits)
