"""``expunge keys``: API keys, straight in the database: the first key cannot come over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer

from expunge_client.cli.durations import seconds
from expunge_client.cli.output import CommandError, as_json, errors, show_hint, show_json, show_list
from expunge_service.access import (
    SCOPES,
    KeyRole,
    NewKey,
    Scope,
    create_key,
    find_actor,
    list_actors,
    list_keys,
    remark,
    revoke_key,
    role_of,
    rotate_key,
)
from expunge_service.cli.errors import told
from expunge_service.infra.db import Database, now
from expunge_service.infra.migrate import SchemaState, schema_state
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.settings import Settings
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_service.infra.time import SECOND

commands = typer.Typer(
    no_args_is_help=True,
    help="API keys: create, list, rotate, revoke.",
)

Tenant = Annotated[str, typer.Option(help="The tenant of the keys.")]


@commands.command("create")
@told()
def create(
    label: Annotated[str, typer.Option(help="What the key is for, or its holder.")] = "",
    actor: Annotated[
        str | None,
        typer.Option(help="Its holder: an actor of `keys list`; else a new one, named by the label."),
    ] = None,
    scope: Annotated[
        list[Scope] | None, typer.Option(help="May be repeated; without one and without --role: all scopes.")
    ] = None,
    role: Annotated[
        KeyRole | None, typer.Option(help="A named set of scopes: viewer, operator, privacy or admin.")
    ] = None,
    expires: Annotated[str | None, typer.Option(help="After how long, as 90d or 12h; never otherwise.")] = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Make a key. It is shown once and not stored."""
    lifetime = None if expires is None else seconds(expires)
    if lifetime == 0:
        raise typer.BadParameter("0 is no lifetime of a key; 90d and 12h are.")
    settings = Settings()
    scopes = {*(scope or ()), *(SCOPES[role] if role else ())} or set(Scope)
    with open_database(settings) as database, database.write() as session:
        expires_at = None if lifetime is None else now(session) + lifetime * SECOND
        pepper = Pepper.load(settings.pepper_file)
        if actor is not None and find_actor(session, tenant, actor) is None:
            raise CommandError(f"There is no actor {actor}.", "`expunge keys list` shows them.")
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
    _show_once(key)


@commands.command("list")
@told()
def list_all(tenant: Tenant = DEFAULT_TENANT) -> None:
    """List all keys and their actors, revoked ones included. The keys themselves are not shown."""
    with open_database(Settings()) as database, database.read() as session:
        names = {each.id: each.name for each in list_actors(session, tenant)}
        rows = [
            {
                "id": key.id,
                "prefix": key.prefix,
                "label": key.label,
                "actor": key.actor_id,
                "held_by": names.get(key.actor_id),
                "role": role_of(key.scopes),
                "scopes": list(key.scopes),
                "created_at": _iso(key.created_at),
                "expires_at": _iso(key.expires_at),
                "revoked_at": _iso(key.revoked_at),
            }
            for key in list_keys(session, tenant)
        ]
    show_list(
        rows,
        ("prefix", "label", "actor", "held_by", "created_at", "expires_at", "revoked_at", "role", "scopes"),
    )


@commands.command("rotate")
@told()
def rotate_one(
    key: Annotated[str, typer.Argument(help="Id or prefix of the key.")],
    overlap: Annotated[str, typer.Option(help="How long the old key still works, as 7d or 12h.")] = "24h",
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Make a key's successor, with the same scopes; it is shown once. The old key ends after the overlap."""
    settings, remaining = Settings(), seconds(overlap) * SECOND
    with open_database(settings) as database, database.write() as session:
        made = rotate_key(session, Pepper.load(settings.pepper_file), key, remaining, tenant)
    if made is None:
        raise CommandError("There is no such key, or it is over.", "`expunge keys list` shows them.")
    _show_once(made)


@commands.command("revoke")
@told()
def revoke(
    key: Annotated[str, typer.Argument(help="Id or prefix of the key.")], tenant: Tenant = DEFAULT_TENANT
) -> None:
    """Revoke a key, at once and permanently."""
    with open_database(Settings()) as database, database.write() as session:
        done = revoke_key(session, key, tenant)
    if not done:
        raise CommandError("There is no such key, or it was revoked before.", "`expunge keys list` shows them.")
    errors.print("revoked.")


def _show_once(key: NewKey) -> None:
    if as_json():
        show_json({"id": key.id, "prefix": key.prefix, "actor": key.actor_id, "key": key.secret})
        return
    errors.print("The key, shown once:")
    typer.echo(key.secret)


@contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    """Open the database. Raises CommandError where it lacks the schema of this release."""
    database = Database(settings.database_url)
    try:
        if schema_state(database) is not SchemaState.CURRENT:
            raise CommandError("The database does not have the schema of this release.", "Run `expunge migrate`.")
        yield database
    finally:
        database.close()


def _iso(moment: int | None) -> str | None:
    return None if moment is None else datetime.fromtimestamp(moment / 1e6, UTC).isoformat(timespec="seconds")
