"""``expunge keys``: API keys, straight in the database: the first key cannot come over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer
from sqlalchemy.orm import Session

from expunge.service.access.api_keys import (
    Scope,
    create_key,
    find_actor,
    list_actors,
    list_keys,
    name_actor,
    revoke_key,
    rotate_key,
)
from expunge.service.access.installation import check_places
from expunge.service.access.roles import SCOPES, KeyRole, remark, role_of
from expunge.service.audit.key_rotation import keep_handovers, rotate
from expunge.service.audit.log import newest_key
from expunge.service.audit.signed_note import Signer
from expunge.service.cli.errors import told
from expunge.service.infra.db import Database, now
from expunge.service.infra.files import folder_at
from expunge.service.infra.migrate import SchemaState, schema_state
from expunge.service.infra.pseudonyms import Pepper
from expunge.service.infra.settings import Settings, adopt_secret, next_secret
from expunge.service.infra.tables import ActorName
from expunge.service.infra.tenants import DEFAULT_TENANT
from expunge.service.infra.time import DAY_SECONDS, HOUR_SECONDS, SECOND
from expunge_client.cli.output import AsCsv, AsJson, CommandError, errors, show_hint, show_json, show_list

commands = typer.Typer(
    no_args_is_help=True,
    help="API keys: create, list, rotate, revoke; actors, rename, erase: who holds them; rotate-signing.",
)

Tenant = Annotated[str, typer.Option(help="Whose keys.")]


@commands.command("create")
@told()
def create(
    label: Annotated[str, typer.Option(help="What the key is for, or who holds it.")] = "",
    actor: Annotated[
        str | None,
        typer.Option(help="Who is to hold it: an id of `keys actors`; a new actor named by the label otherwise."),
    ] = None,
    scope: Annotated[
        list[Scope] | None, typer.Option(help="May be repeated; without one and without --role: all scopes.")
    ] = None,
    role: Annotated[
        KeyRole | None, typer.Option(help="A named set of scopes: viewer, operator, privacy or admin.")
    ] = None,
    days: Annotated[int | None, typer.Option(help="Days until it expires; never otherwise.", min=1)] = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown once and not stored."""
    settings = Settings()
    scopes = {*(scope or ()), *(SCOPES[role] if role else ())} or set(Scope)
    with _database(settings) as database, database.write() as session:
        expires_at = None if days is None else now(session) + days * DAY_SECONDS * SECOND
        pepper = Pepper.load(settings.pepper_file)
        if actor is not None:
            _actor(session, tenant, actor)
        key = create_key(
            session,
            pepper,
            label=label,
            scopes=scopes,
            tenant_id=tenant,
            expires_at=expires_at,
            actor_id=actor,
        )
    show_hint(remark(scopes) or "")
    if as_json:
        show_json({"id": key.id, "prefix": key.prefix, "actor": key.actor_id, "key": key.secret})
        return
    errors.print("The key, shown once:")
    typer.echo(key.secret)


@commands.command("list")
@told()
def list_all(tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List all keys, revoked ones included. The keys themselves are not shown."""
    with _database(Settings()) as database, database.read() as session:
        rows = [
            {
                "id": key.id,
                "prefix": key.prefix,
                "label": key.label,
                "actor": key.actor_id,
                "role": role_of(key.scopes),
                "scopes": list(key.scopes),
                "created_at": _iso(key.created_at),
                "expires_at": _iso(key.expires_at),
                "revoked_at": _iso(key.revoked_at),
            }
            for key in list_keys(session, tenant)
        ]
    show_list(
        rows, ("prefix", "label", "actor", "created_at", "expires_at", "revoked_at", "role", "scopes"), as_json, as_csv
    )


@commands.command("rotate")
@told()
def rotate_one(
    key: Annotated[str, typer.Argument(help="Id or prefix of the key.")],
    overlap_hours: Annotated[int, typer.Option(help="How long the old key still works.", min=0)] = 24,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Make a key's successor, with the same scopes; it is shown once. The old key ends after the overlap."""
    settings = Settings()
    with _database(settings) as database, database.write() as session:
        overlap = overlap_hours * HOUR_SECONDS * SECOND
        made = rotate_key(session, Pepper.load(settings.pepper_file), key, overlap, tenant)
    if made is None:
        raise CommandError("There is no such key, or it is over.", "`expunge keys list` shows them.")
    errors.print("The key, shown once:")
    typer.echo(made.secret)


@commands.command("revoke")
@told()
def revoke(
    key: Annotated[str, typer.Argument(help="Id or prefix of the key.")], tenant: Tenant = DEFAULT_TENANT
) -> None:
    """Revoke a key, at once and permanently."""
    with _database(Settings()) as database, database.write() as session:
        done = revoke_key(session, key, tenant)
    if not done:
        raise CommandError("There is no such key, or it was revoked before.", "`expunge keys list` shows them.")
    errors.print("revoked.")


@commands.command("actors")
@told()
def actors(tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List all actors, who hold the keys: the ids that the audit log names, and their names."""
    with _database(Settings()) as database, database.read() as session:
        found = list_actors(session, tenant)
    rows = [{"id": each.id, "name": each.name, "created_at": _iso(each.created_at)} for each in found]
    show_list(rows, ("id", "name", "created_at"), as_json, as_csv)


@commands.command("rename")
@told()
def rename(
    actor: Annotated[str, typer.Argument(help="Id of the actor.")],
    name: Annotated[str, typer.Argument(help="The new name.")],
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Name an actor. The name is kept in one table, never in the audit log."""
    with _database(Settings()) as database, database.write() as session:
        name_actor(session, _actor(session, tenant, actor), name)
    errors.print("renamed.")


@commands.command("erase")
@told()
def erase(actor: Annotated[str, typer.Argument(help="Id of the actor.")], tenant: Tenant = DEFAULT_TENANT) -> None:
    """Erase an actor's name and the labels of their keys. The audit log keeps the id alone."""
    with _database(Settings()) as database, database.write() as session:
        name_actor(session, _actor(session, tenant, actor), None)
    errors.print("erased.")


@commands.command("rotate-signing")
@told()
def rotate_signing() -> None:
    """Sign the log and certificates with a new key from now on; the old one is retired in the log.

    What was signed before still verifies. Run it where the API and the scheduler read EXPUNGE_SECRETS.
    """
    settings = Settings()
    old, new = Signer.of(settings), Signer.at(settings, next_secret(settings.signing_key_file))
    store = folder_at(settings.store)
    with _database(settings) as database:
        check_places(database, {"store": store})
        with database.write() as session:
            if newest_key(session) != new.verifier:  # else the database knows already, and the file was not replaced
                rotate(session, old, new)
        with database.read() as session:
            keep_handovers(session, store)
    adopt_secret(settings.signing_key_file)
    published = settings.home / "log.vkey"
    if published.exists():
        published.write_text(f"{new.verifier}\n")
    errors.print("rotated. The log's public key from now on:")
    typer.echo(str(new.verifier))


def _actor(session: Session, tenant_id: str, actor_id: str) -> ActorName:
    """Return the actor. Raises CommandError where there is none."""
    found = find_actor(session, tenant_id, actor_id)
    if found is None:
        raise CommandError(f"There is no actor {actor_id}.", "`expunge keys actors` lists them.")
    return found


@contextmanager
def _database(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database_url)
    try:
        if schema_state(database) is not SchemaState.CURRENT:
            raise CommandError("The database does not have the schema of this release.", "Run `expunge migrate`.")
        yield database
    finally:
        database.close()


def _iso(moment: int | None) -> str | None:
    return None if moment is None else datetime.fromtimestamp(moment / 1e6, UTC).isoformat(timespec="seconds")
