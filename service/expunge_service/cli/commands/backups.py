"""``expunge backup`` and ``expunge restore``: a copy of the database, and what follows after one was put back."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import make_url

from expunge_client.cli.durations import seconds
from expunge_client.cli.output import USAGE, CommandError, errors, show_facts
from expunge_service.audit import Contradicted, Witness
from expunge_service.cli.errors import told
from expunge_service.infra.db import Database
from expunge_service.infra.python import PYTHON
from expunge_service.infra.settings import Settings
from expunge_service.infra.stores import folder_at
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_service.models import confirm

_NAMED = re.compile(r"expunge-(\d{8}T\d{6}Z)\.(?:db|dump)")
"""the copies that ``backup`` names itself, by the moment of each (UTC)"""
_MOMENT = "%Y%m%dT%H%M%SZ"


@told()
def backup(
    file: Annotated[Path, typer.Argument(help="A new file, or a folder, in which the copy is named by its moment.")],
    keep: Annotated[
        str | None, typer.Option(help="Afterwards delete the folder's copies that are older, as 14d.")
    ] = None,
) -> None:
    """Copy the database while it runs. The key store and the secrets are never part of it."""
    kept = None if keep is None else timedelta(seconds=seconds(keep))
    folder, at = file, datetime.now(UTC)
    if folder.is_dir():
        suffix = "db" if make_url(Settings().database_url).get_backend_name() == "sqlite" else "dump"
        file = folder / f"expunge-{at.strftime(_MOMENT)}.{suffix}"
    elif kept is not None:
        raise CommandError(f"--keep {keep}: {file} is no folder.", "Name the folder of the copies.", USAGE)
    _copy(file)
    errors.print(f"written: {file}", markup=False)
    if kept is not None:
        _delete_older(folder, at - kept)


def _copy(file: Path) -> None:
    """Write the copy, whole or not at all."""
    if file.exists():
        raise CommandError(f"{file} exists.", "Name a new file: a backup is never overwritten.")
    url = make_url(Settings().database_url)
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except PermissionError:
        raise CommandError(
            f"{file} cannot be written.", f"Let the user {os.geteuid()} write into {file.absolute().parent}."
        ) from None
    try:
        if url.get_backend_name() == "sqlite":
            _copy_sqlite(Path(url.database or ""), file)
        else:
            _dump_postgresql(url.render_as_string(hide_password=False), file)
    except BaseException:
        file.unlink()  # half a backup looks like one
        raise


def _delete_older(folder: Path, than: datetime) -> None:
    """Delete the copies that ``backup`` made before this moment, by their names. Other files stay."""
    for path in sorted(folder.iterdir()):
        named = _NAMED.fullmatch(path.name)
        if named and datetime.strptime(named[1], _MOMENT).replace(tzinfo=UTC) < than:
            path.unlink()
            errors.print(f"deleted: {path}", markup=False)


@told()
def restore(
    log: Annotated[list[Path] | None, typer.Option(help="An exported audit log; one for each tenant.")] = None,
    confirm_it: Annotated[bool, typer.Option("--confirm", help="The report is read: let the service write.")] = False,
) -> None:
    """Apply the versions again that were published after the backup. The service reads only until --confirm."""
    report = _confirmed() if confirm_it else _restored(log or [])
    show_facts(report)


def _restored(exports: list[Path]) -> dict[str, Any]:
    arguments = [*PYTHON, "-m", "expunge_workers.main", "restore", *map(str, exports)]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        what = done.stderr.strip().splitlines()[-1:] or ["The restore failed."]
        raise CommandError(what[0], "Nothing was changed.")
    report: dict[str, Any] = json.loads(done.stdout)
    errors.print("The service reads only now. Read the report, then: expunge restore --confirm", soft_wrap=True)
    return report


def _confirmed() -> dict[str, Any]:
    settings = Settings()
    database, witness = Database(settings.database_url), Witness(folder_at(settings.store))
    try:
        with database.write() as session:
            report = confirm(session, DEFAULT_TENANT, witness)
    except (OSError, Contradicted) as error:
        raise CommandError(
            f"The store did not take the new epoch: {error}", "Nothing was changed. Try again."
        ) from None
    finally:
        database.close()
    if report is None:
        raise CommandError("No restore waits to be confirmed.", "`expunge restore` comes first.")
    return report


def _copy_sqlite(source: Path, target: Path) -> None:
    """Write a consistent copy. VACUUM leaves out free pages, and so what was deleted."""
    if not source.is_file():
        raise CommandError(f"There is no database {source}.", "Set EXPUNGE_DATABASE_URL.")
    connection = sqlite3.connect(source)
    try:
        connection.execute("VACUUM INTO ?", (str(target),))
    finally:
        connection.close()


def _dump_postgresql(url: str, target: Path) -> None:
    tool = shutil.which("pg_dump")
    if tool is None:
        raise CommandError("pg_dump is not on PATH.", "Install PostgreSQL's client tools, or back up on the server.")
    address = make_url(url)
    environment = os.environ | {"PGPASSWORD": str(address.password or "")}
    plain = address._replace(drivername="postgresql", password=None).render_as_string()  # set() takes no None
    done = subprocess.run(  # noqa: S603
        [tool, "--format=custom", f"--file={target}", plain],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode:
        raise CommandError("pg_dump failed.", (done.stderr.strip().splitlines() or [""])[-1])
