"""What a worker process works with, opened once."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from celery import Celery

from service.access.api_keys import check_pepper
from service.infra.db import Database
from service.infra.files import Store
from service.infra.pseudonyms import Pepper
from service.infra.queue import notify as queue
from service.infra.settings import Settings, read_secret
from service.infra.tenants import recipes_of
from service.models.figures import Figures
from workers.storage.encryption import Sealer
from workers.storage.key_store import KeyStore
from workers.storage.release_journal import Journal


@dataclass(frozen=True)
class Workshop:
    """``store`` holds what is published (y), ``private`` what never leaves the workers (w~), ``keys`` the row keys."""

    owner: str
    database: Database
    store: Store
    private: Store
    keys: KeyStore
    sealer: Sealer
    pepper: Pepper
    notifier: Celery
    recipes: Path
    tenants: frozenset[str] | None
    """whom this worker serves; None: every tenant"""
    device: str
    lease_seconds: float
    work_units: int
    vector_bytes: int

    @property
    def journal(self) -> Journal:
        """What was released, for the day on which a backup must be restored."""
        return Journal(self.store.root, self.sealer, self.store.disk)

    def recipes_of(self, tenant_id: str) -> Path:
        """The folder of the tenant's recipes."""
        return recipes_of(self.recipes, tenant_id)

    def serves(self, tenant_id: str) -> bool:
        """Whether the settings name the tenant: no work of another's is done here, and no key destroyed."""
        return self.tenants is None or tenant_id in self.tenants

    @property
    def figures(self) -> Figures:
        """What registration measured on everyone, as long as nobody was deleted."""
        return Figures(self.store.root, self.store.disk)

    def close(self) -> None:
        self.database.close()
        self.keys.close()


def open_workshop(settings: Settings) -> Workshop:
    """Open it. Raises SettingsError where a secret is missing or the pepper is another installation's."""
    database, pepper = Database(settings.database_url), Pepper.load(settings.pepper_file)
    check_pepper(database, pepper)
    return Workshop(
        owner=f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}",
        database=database,
        store=Store(settings.store),
        private=Store(settings.private_store),
        keys=KeyStore.of(settings),
        sealer=Sealer(read_secret("EXPUNGE_SEALING_KEY_FILE", settings.sealing_key_file)),
        pepper=pepper,
        notifier=queue.publisher(settings.broker_url),
        recipes=settings.recipes,
        tenants=settings.served_tenants,
        device=settings.device,
        lease_seconds=settings.lease_seconds,
        work_units=settings.work_units,
        vector_bytes=settings.vector_bytes,
    )
