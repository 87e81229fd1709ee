"""``expunge drop``: California's deletion lists. Read them, compare them with known people, and answer."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from expunge.service.cli.errors import told
from expunge.service.connect.drop.items import (
    Answer,
    Feed,
    answers,
    counts,
    mark_checked,
    mark_reported,
    match,
    store,
    withdraw,
)
from expunge.service.connect.drop.lists import REMOVED, identities, lists
from expunge.service.infra.db import Database
from expunge.service.infra.pseudonyms import Pepper
from expunge.service.infra.queue.notify import notify, publisher
from expunge.service.infra.settings import Settings
from expunge.service.infra.tenants import DEFAULT_TENANT
from expunge_client.cli.output import CommandError, errors, show_facts

commands = typer.Typer(no_args_is_help=True, help="California's deletion lists (DROP): import, match, status, export.")
Tenant = Annotated[str, typer.Option(help="Whose lists these are.")]
_LATER = "Then run `expunge drop export` again: it answers what has changed."


@commands.command("import")
@told()
def import_lists(
    files: Annotated[list[Path], typer.Argument(help="Downloaded lists: the CSV files, or the ZIP file.")],
    people: Annotated[Path | None, typer.Option("--identities", help="See `expunge drop match`.")] = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Keep the entries of downloaded lists, and delete the people whom they name. May be repeated."""
    facts: dict[str, Any] = {"items": 0, "withdrawn_too_late": 0}
    with _feed(tenant) as feed:
        for each in (found for file in files for found in lists(file)):
            errors.print(f"reading {each.source}_{each.list_name} ...", markup=False, highlight=False)
            if each.list_name == REMOVED:
                facts["withdrawn_too_late"] += withdraw(feed, each.source, each.entries)
            else:
                facts["items"] += store(feed, each.source, each.entries)
        facts |= _matched(feed, people) if people is not None else {}
    show_facts(facts)


@commands.command("match")
@told()
def match_people(
    people: Annotated[Path, typer.Option("--identities", help="CSV: person, and email, phone, first_name, ...")],
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Compare every kept entry with everybody whom you know, and ask for the deletion of whom they name.

    The file is read once and not stored. It must hold everybody: an entry that names nobody in it is answered
    "not found". The entries of a list for which no line gives a hash get no answer.
    """
    with _feed(tenant) as feed:
        facts = _matched(feed, people)
    show_facts(facts)


@commands.command("status")
@told()
def status(tenant: Tenant = DEFAULT_TENANT) -> None:
    """Count the entries by what they would be answered now."""
    with _feed(tenant) as feed, feed.database.read() as session:
        facts = counts(session, tenant)
    show_facts(facts)


@commands.command("export")
@told()
def export(
    folder: Annotated[Path, typer.Argument(help="Where to write the answers; it is created.")],
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Write the answers that were not given yet, one file for each list, to be uploaded. Then they count as given.

    A file that ends in _amended holds answers that have changed: upload it as an amendment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _feed(tenant) as feed:
        with feed.database.read() as session:
            found = sorted(answers(session, tenant), key=lambda each: (_file(each), each.item))
        written = [_write(folder, list(part)) for _, part in groupby(found, _file)]
        mark_reported(feed, found)
        with feed.database.read() as session:
            waiting = counts(session, tenant).get("waiting", 0)
    if waiting:
        errors.print(f"{waiting} entries have no answer yet. {_LATER}")
    facts = {"answers": len(found), "waiting": waiting, "files": written}
    show_facts(facts)


def _file(answer: Answer) -> str:
    return f"{answer.source}_{answer.list_name}{'_amended' if answer.amends else ''}.csv"


def _write(folder: Path, found: Iterable[Answer]) -> str:
    """Write the answers durably, under their final name only when whole; return the name."""
    rows = list(found)
    target = folder / _file(rows[0])
    part = target.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["Id", "Status"])
        writer.writerows([each.item, int(each.status)] for each in rows)
        file.flush()
        os.fsync(file.fileno())
    part.replace(target)
    return target.name


def _matched(feed: Feed, people: Path) -> dict[str, Any]:
    with identities(people) as rows:
        found = match(feed, rows)
    mark_checked(feed, found)
    notify(feed.database, publisher(Settings().broker_url), found.to_notify)
    for name in (name for name, lines in found.hashed.items() if not lines):
        errors.print(
            f"No line of {people} gives a hash for the list {name}: its entries were compared with nobody, and get no "
            "answer. Add its columns and run `expunge drop match` again.",
            markup=False,
            soft_wrap=True,
        )
    compared = {"people": found.people, "hashed": found.hashed, "uncompared": found.uncompared}
    return compared | {"requests": len(found.requests), "shared": found.shared}


@contextmanager
def _feed(tenant: str) -> Iterator[Feed]:
    """Open the tenant's feed. A malformed file ends the command with what is wrong in it."""
    settings = Settings()
    pepper = Pepper.load(settings.pepper_file)
    database = Database(settings.database_url)
    try:
        yield Feed(database, pepper, tenant)
    except ValueError as error:
        raise CommandError(str(error), "Correct the file and run the command again: what was read is kept.") from None
    finally:
        database.close()
