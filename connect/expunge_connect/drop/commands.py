"""``expunge drop``: California's deletion lists. Read them, compare them with known people, and answer."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from expunge_client import Expunge, Refused, Unreachable
from expunge_client.cli.client import Account
from expunge_client.cli.output import UNREACHABLE, CommandError, errors, show_facts
from expunge_connect.drop.admission import PEOPLE
from expunge_connect.drop.items import (
    Answer,
    Compared,
    Feed,
    answers,
    counts,
    imported_at,
    mark_checked,
    mark_reported,
    match,
    refresh,
    store,
    withdraw,
)
from expunge_connect.drop.lists import REMOVED, MalformedCells, identities, lists
from expunge_connect.places import folder_of

commands = typer.Typer(no_args_is_help=True, help="California's deletion lists (DROP): import, match, status, export.")
TOLERATED = 1_000
"""values of which one may be malformed; with more of them, "not found" would be a guess"""
Tenant = Annotated[str, typer.Option(help="The tenant of the lists and of the API key.")]
People = Annotated[
    Path | None,
    typer.Option("--identities", help="CSV: person, and email, phone, first_name, ... Left out: people.csv."),
]
Skip = Annotated[bool, typer.Option("--skip-malformed", help="Compare the well-formed values, and count the others.")]
AnswerAll = Annotated[
    bool,
    typer.Option(
        "--answer-not-found",
        help=f"With --skip-malformed: answer 'not found' although more than one value in {TOLERATED} is malformed.",
    ),
]
DAY_SECONDS, LATE_DAYS = 86_400, 40
"""five days are left then to import the lists in time (Cal. Civ. Code 1798.99.86)"""
_LATER = "Then run `expunge drop export` again: it answers what has changed."


@commands.command("import")
def import_lists(
    files: Annotated[list[Path], typer.Argument(help="Downloaded lists: the CSV files, or the ZIP file.")],
    people: People = None,
    tenant: Tenant = "default",
    *,
    skip_malformed: Skip = False,
    answer_not_found: AnswerAll = False,
) -> None:
    """Keep the entries of downloaded lists and delete the people on them. May be repeated.

    Without people.csv in the tenant's folder and without --identities the entries are kept, and compared with nobody.
    """
    facts: dict[str, Any] = {"items": 0, "withdrawn_too_late": 0}
    people = people or _kept_people(tenant)
    with _opened(tenant) as (feed, service):
        for each in (found for file in files for found in lists(file)):
            errors.print(f"reading {each.source}_{each.list_name} ...")
            if each.list_name == REMOVED:
                facts["withdrawn_too_late"] += withdraw(feed, service, each.source, each.entries)
            else:
                facts["items"] += store(feed, each.source, each.entries)
        if people.exists():
            reading = Reading(people, skip_malformed=skip_malformed, answer_not_found=answer_not_found)
            facts |= _matched(feed, service, reading)
    show_facts(facts)


@commands.command("match")
def match_people(
    people: People = None,
    tenant: Tenant = "default",
    *,
    skip_malformed: Skip = False,
    answer_not_found: AnswerAll = False,
) -> None:
    """Match the lists with your people and request the deletions.

    The file is read once and not stored. It must hold everybody: an entry that names nobody in it is answered
    "not found". The entries of a list for which no line gives a hash get no answer.
    """
    with _opened(tenant) as (feed, service):
        file = people or _kept_people(tenant)
        reading = Reading(file, skip_malformed=skip_malformed, answer_not_found=answer_not_found)
        facts = _matched(feed, service, reading)
    show_facts(facts)


@commands.command("status")
def status(tenant: Tenant = "default") -> None:
    """Count the entries by what they would be answered now."""
    with _opened(tenant) as (feed, service):
        refresh(feed, service)
        facts = counts(feed)
        last = imported_at(feed)
    days = 0.0 if last is None else (time.time() - last) / DAY_SECONDS
    if days > LATE_DAYS:
        errors.print(f"Lists were last imported {days:.0f} days ago; the Delete Act asks for it every 45 days.")
    show_facts(facts)


@commands.command("export")
def export(
    folder: Annotated[Path, typer.Argument(help="Where to write the answers; it is created.")],
    tenant: Tenant = "default",
) -> None:
    """Write the answers that were not given yet, one file for each list, to be uploaded. Then they count as given.

    A file that ends in _amended holds answers that have changed: upload it as an amendment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _opened(tenant) as (feed, service):
        refresh(feed, service)
        found = sorted(answers(feed), key=lambda each: (_file(each), each.item))
        written = [_write(folder, list(part)) for _, part in groupby(found, _file)]
        mark_reported(feed, found)
        waiting = counts(feed).get("waiting", 0)
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


def _kept_people(tenant: str) -> Path:
    return folder_of(tenant) / PEOPLE


class Reading(NamedTuple):
    """How a file of people is read: whether it may have malformed values, and what is answered where it has many."""

    file: Path
    skip_malformed: bool
    answer_not_found: bool


def _matched(feed: Feed, service: Expunge, reading: Reading) -> dict[str, Any]:
    refresh(feed, service)  # a request that the service lost is made again
    with identities(reading.file, skip_malformed=reading.skip_malformed) as people:
        found, requests = match(feed, service, people)
    unsure = set() if reading.answer_not_found else _unsure(found, people.malformed)
    mark_checked(feed, found, unsure)
    for name in (name for name, lines in found.hashed.items() if not lines):
        errors.print(
            f"No line of {reading.file} gives a hash for the list {name}: its entries were compared with nobody, and "
            "get no answer. Add its columns and run `expunge drop match` again.",
            soft_wrap=True,
        )
    for warning in people.warnings:
        errors.print(f"Warning: {warning}.", soft_wrap=True)
    for name in sorted(unsure):
        errors.print(
            f"{people.malformed.of(name)} values of {reading.file} could not be compared with the list {name}, more "
            f"than one in {TOLERATED}: its entries are not answered as not found. Correct the file and run "
            "`expunge drop match` again, or give --answer-not-found.",
            soft_wrap=True,
        )
    compared = {"people": found.people, "hashed": found.hashed, "uncompared": found.uncompared}
    malformed = {"malformed": dict(people.malformed.counts)} if people.malformed.counts else {}
    return compared | malformed | {"requests": len(requests), "shared": len(found.shared)}


def _unsure(found: Compared, malformed: MalformedCells) -> set[str]:
    """Lists of which so many values are malformed that "not found" would be a guess."""
    return {name for name in found.compared if malformed.of(name) * TOLERATED > found.people}


@contextmanager
def _opened(tenant: str) -> Iterator[tuple[Feed, Expunge]]:
    """Open the tenant's feed and the service. Whatever goes wrong ends the command with what it is and what to do."""
    account = Account.find(os.environ)
    again = "Correct it and run the command again: what was done is kept."
    with Expunge(account.url, account.api_key) as service:
        try:
            for model in service.models():
                if model["tenant"] != tenant:
                    what = f"The API key is of the tenant {model['tenant']}, and the lists are of {tenant}."
                    raise CommandError(what, f"Give --tenant {model['tenant']}, or a key of {tenant}.")
                break
            feed = Feed.open(folder_of(tenant))
            try:
                yield feed, service
            finally:
                feed.database.close()
        except (OSError, ValueError) as error:
            raise CommandError(str(error), again) from None
        except Refused as error:
            scopes = "The key needs deletions:write, deletions:read and models:read."
            raise CommandError(str(error), scopes if error.status == 403 else again) from None
        except Unreachable as error:
            raise CommandError(str(error), "Is the service running? EXPUNGE_URL says where.", UNREACHABLE) from None
