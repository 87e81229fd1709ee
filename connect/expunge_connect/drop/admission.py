"""The admission check ``drop``: a registration trains on nobody whom a deletion list names (``expunge.admission``)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from expunge_connect.drop.identifiers import PERSON, Row
from expunge_connect.drop.items import DATABASE, Feed, compare, count_open
from expunge_connect.drop.lists import identities
from expunge_connect.places import HOME, folder_of

NAME, REQUIRED = "drop", "EXPUNGE_ADMISSION"
"""this check, and the service's setting that names the checks that must be asked"""
PEOPLE = "people.csv"
"""in the tenant's folder, or a link there: who has which identifiers"""


class Admission(NamedTuple):
    leave_out: Collection[str] = ()
    refusal: str | None = None


def check(tenant: str, people: Collection[str]) -> Admission:
    """Compare everybody in the tenant's people.csv with the kept entries, and name those who are among ``people``.

    It refuses where an entry cannot be compared with somebody. Nothing is written: `expunge drop match` asks for the
    deletions. Raises OSError, ValueError or sqlite3.Error where a file cannot be read.
    """
    folder = folder_of(tenant)
    if not folder.parent.is_dir() and os.environ.get(HOME):
        return Admission(refusal=f"{HOME} names {folder.parent}, which is no folder here. Mount it, or correct it.")
    if not (folder / DATABASE).exists():
        if NAME not in os.environ.get(REQUIRED, "").replace(" ", "").split(","):
            return Admission()
        what = f"{REQUIRED} names {NAME}, and {folder} holds no deletion lists here."
        return Admission(
            refusal=f"{what} Mount it, correct {HOME}, or begin with `expunge drop status --tenant {tenant}`."
        )
    feed = Feed.read(folder)
    try:
        return _compared(feed, folder / PEOPLE, people)
    finally:
        feed.database.close()


def _compared(feed: Feed, file: Path, people: Collection[str]) -> Admission:
    waiting = count_open(feed)
    if not waiting:
        return Admission()
    if not file.exists():
        what = f"{waiting} entries of deletion lists cannot be compared with anybody, because {file} is not there."
        return Admission(refusal=f"{what} Write it, or a link to it (docs/connectors.md).")
    unknown = set(people)
    with identities(file) as rows:
        found = compare(feed, _crossing_off(rows, unknown))
    named = found.wanted.keys() & set(people)
    if found.uncompared:
        what = f"{found.uncompared} entries of deletion lists cannot be compared with anybody: no line of {file} gives"
        return Admission(named, f"{what} a hash for their lists. Add their columns (`expunge drop match` names them).")
    if unknown:
        what = f"{len(unknown)} of {len(people)} people of the recipe have no line in {file}, so no entry can be"
        return Admission(named, f"{what} compared with them. Write all people to it.")
    return Admission(named)


def _crossing_off(rows: Iterable[Row], unknown: set[str]) -> Iterable[Row]:
    for row in rows:
        unknown.discard(row[PERSON])
        yield row
