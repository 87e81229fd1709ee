"""``expunge audit rotate-key``: the log and certificates get a new signing key."""

from __future__ import annotations

from expunge_service.access import check_places
from expunge_service.audit import Signer, Verifier, keep_handovers, newest_key, rotate_signing_key
from expunge_service.cli.commands.keys import open_database
from expunge_service.cli.errors import told
from expunge_service.infra.settings import Settings, adopt_secret, next_secret
from expunge_service.infra.stores import folder_at


@told()
def rotate_key() -> Verifier:
    """Return the new public key. What a call that was cut short has begun, the next one completes."""
    settings = Settings()
    old, new = Signer.of(settings), Signer.at(settings, next_secret(settings.signing_key_file))
    store = folder_at(settings.store)
    with open_database(settings) as database:
        check_places(database, {"store": store})
        with database.write() as session:
            if newest_key(session) != new.verifier:  # else the database knows already, and the file was not replaced
                rotate_signing_key(session, old, new)
        with database.read() as session:
            keep_handovers(session, store)
    adopt_secret(settings.signing_key_file)
    published = settings.home / "log.vkey"
    if published.exists():
        published.write_text(f"{new.verifier}\n")
    return new.verifier
