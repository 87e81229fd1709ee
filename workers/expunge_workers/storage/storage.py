"""Where the data of a worker lie: the database, the two stores of files, the keys, and the secrets that open them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from expunge_service.access import Markable, check_pepper, claim_places, place_name
from expunge_service.infra.actors import WORKER
from expunge_service.infra.db import Database
from expunge_service.infra.migrate import RUN_MIGRATE, SchemaState, schema_state
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.settings import Settings, SettingsError, read_secret
from expunge_service.infra.stores import Store
from expunge_service.models import Figures, Guard
from expunge_workers.storage.encryption import Sealer
from expunge_workers.storage.key_store import KeyStore
from expunge_workers.storage.update_journal import Journal


def open_places(database: Database, settings: Settings) -> tuple[Store, Store, KeyStore]:
    """Open the store, the private store and the key store; claim those that are new, check that all are ours.

    Those of some tenants alone are claimed for these tenants. Raises Busy, and SettingsError also where the database
    waits for a migration: a step may change only rows, so no missing column would stop the process.
    """
    if schema_state(database) is SchemaState.BEHIND:
        raise SettingsError(RUN_MIGRATE)
    store, private = Store.at(settings.store), Store.at(settings.private_store)
    keys = KeyStore.of(settings)
    apart: dict[str, Markable] = {"private_store": private.folder, "key_folder": keys.folder, "key_store_url": keys}
    named = {place_name(setting, settings.served_tenants): place for setting, place in apart.items()}
    try:
        claim_places(database, {"store": store.folder} | named)
    except BaseException:
        keys.close()
        raise
    return store, private, keys


@dataclass(frozen=True)
class Storage:
    """``store`` holds what is published, ``private`` what never leaves the workers, ``keys`` the keys of the rows."""

    database: Database
    store: Store
    private: Store
    keys: KeyStore
    sealer: Sealer
    pepper: Pepper

    @classmethod
    def of(cls, settings: Settings, actor: str = WORKER) -> Storage:
        """Open everything that the settings name. ``actor`` acts in its transactions.

        Raises Busy, and SettingsError where a secret is missing, or the pepper or a place is another installation's.
        """
        database, pepper = Database(settings.database_url, actor), Pepper.load(settings.pepper_file)
        check_pepper(database, pepper)
        store, private, keys = open_places(database, settings)
        return cls(
            database=database,
            store=store,
            private=private,
            keys=keys,
            sealer=Sealer(read_secret(settings.sealing_key_file)),
            pepper=pepper,
        )

    @cached_property
    def guard(self) -> Guard:
        """Return what compares the database with the store."""
        return Guard(self.database, self.store.folder)

    @cached_property
    def journal(self) -> Journal:
        """Return the journal of updates, which a restored backup is compared with."""
        return Journal(self.guard, self.sealer)

    @property
    def figures(self) -> Figures:
        """Return the figures that registration measured on all people; they are kept until a person is deleted."""
        return Figures(self.store.folder)

    def close(self) -> None:
        self.database.close()
        self.keys.close()
