"""What is missing or misconfigured, in plain words. Each check looks at one thing and only reads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import func, make_url, select
from sqlalchemy.exc import SQLAlchemyError

from expunge_service.access import Scope, check_pepper, check_places, place_name
from expunge_service.infra.broker.login import LoginRefused, Silent, log_in
from expunge_service.infra.db import Busy, Database, now
from expunge_service.infra.files import filesystem_of
from expunge_service.infra.limits import LIMITS, Limits
from expunge_service.infra.migrate import SchemaState, schema_state
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.python import PYTHON
from expunge_service.infra.settings import SECRETS, Settings, SettingsError, read_secret
from expunge_service.infra.stores import folder_at
from expunge_service.infra.tables import Certificate, Generation, Heartbeat, Model, Task
from expunge_service.infra.time import ALIVE_SECONDS, SECOND
from expunge_service.models import Guard, PutBack, candidate_of, is_other_module, old_forms
from expunge_service.queue import needs_of, untaken, worker_states
from expunge_service.requests import Compared, Reason, explain

SKEW_SECONDS = 5
"""leases and deadlines go by the database's clock alone; receipts, log lines and webhooks by each machine's own"""
BUCKET_SECONDS = 4
"""that a bucket has for its answer"""
_NAMED = 5
"""certificates that are named one by one"""
KEEPS_OLD_BLOCKS = {"bcachefs", "btrfs", "f2fs", "nilfs2", "zfs"}
"""filesystems that write what is overwritten to a new place"""


@dataclass(frozen=True)
class Finding:
    """One look. ``hint`` says what to do, empty where all is well."""

    name: str
    well: bool
    what: str
    hint: str = ""


def by_reason(name: str, reason: Reason, facts: Mapping[str, Any], model: str = "MODEL", more: str = "") -> Finding:
    """Return the finding that a reason of the table is about to block deletions, or does.

    ``facts``: the values of its sentence; ``more`` follows it. The hint has the commands that need no request.
    """
    told = explain(reason, "", [model], facts={reason: facts}, scopes=frozenset(Scope))
    commands = [step["command"] for step in told["actions"] if model in step["command"].split()]
    hint = " ".join([told["remedy"]["action"], *(f"`{each}`" for each in dict.fromkeys(commands))])
    return Finding(name, False, f"{told['title']}{more}", hint)


def examine(settings: Settings, clock: Callable[[], float] = time.time, limits: Limits = LIMITS) -> Iterator[Finding]:
    """Make every check in order. Later ones are left out where an earlier one makes them pointless.

    Args:
        settings: what to look at.
        clock: this machine's clock, in seconds since 1970 UTC.
        limits: those of the processes.
    """
    yield from _secrets(settings)
    yield _recipes(settings.recipes)
    silent = set()
    for name in ("store", "private_store", "key_folder"):
        found = _folder(name, getattr(settings, name))
        if not found.well:
            silent.add(name)
        yield found
    yield _overwritable(settings.key_folder)
    yield from _disks(settings, limits.disk_reserve_bytes)
    yield _broker(settings.broker_url)
    yield from _database(settings, clock, limits.lease_seconds, silent)


def ask_worker() -> Iterator[Finding]:
    """Run the checks that need torch and the recipes' code (``expunge_workers.doctor``) in a separate process."""
    command = [*PYTHON, "-m", "expunge_workers.doctor"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 (the command is ours)
        for line in process.stdout or ():
            yield Finding(**json.loads(line))
    if process.returncode:
        what = f"`python -m expunge_workers.doctor` ended with {process.returncode}: this machine cannot run a worker."
        yield Finding("worker_process", False, what, "Read its message above, on standard error.")


def _secrets(settings: Settings) -> Iterator[Finding]:
    files = [(name, getattr(settings, name)) for name in SECRETS]
    for name, path in files:
        try:
            read_secret(path)
        except SettingsError as error:
            yield Finding(name, False, str(error), "The doctor looks at all four files, as `expunge migrate` does.")
            continue
        except OSError as error:
            what = f"{path} cannot be read by the user {os.geteuid()}: {error.strerror}."
            yield Finding(name, False, what, "Give that user the file and its folder: chown, and chmod 600.")
            continue
        if is_open_to_others(path.stat(), os.geteuid(), {os.getegid(), *os.getgroups()}):
            yield Finding(name, False, f"{path} can be read by others.", f"chmod 600 {path}")
        else:
            yield Finding(name, True, f"{path} is there and private.")


def is_open_to_others(found: os.stat_result, user: int, groups: Collection[int]) -> bool:
    """Return whether others than this user may read or change a file.

    A Secret of Kubernetes belongs to root, and the process reads it by its own group: that is as private.
    """
    reads_by_group = found.st_uid == 0 != user and found.st_gid in groups
    return bool(found.st_mode & (0o037 if reads_by_group else 0o077))


def _recipes(folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding("recipes", False, f"There is no folder {folder.absolute()}.", "Set EXPUNGE_RECIPES.")
    files = {path: path.stem for path in folder.glob("*.py")}
    files |= {path: path.parent.name for path in folder.glob("*/recipe.py")}
    found = sorted(name for path, name in files.items() if not is_other_module(path))
    skipped = sorted(path.name for path in files if is_other_module(path))
    told = f" Skipped, for they define no recipe(): {', '.join(skipped)}." if skipped else ""
    if not found:
        what = f"{folder.absolute()} holds no recipe.{told}"
        return Finding("recipes", False, what, "Put NAME.py or NAME/recipe.py there.")
    return Finding("recipes", True, f"{folder.absolute()}: {', '.join(found)}.{told}")


def _folder(name: str, path: Path | str) -> Finding:
    if not isinstance(path, Path):
        return _bucket(name, path)
    nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Finding(
            name, False, f"{path} cannot be written.", f"Let this user write there, or set EXPUNGE_{name.upper()}."
        )
    return Finding(name, True, f"{path} can be written.")


def _bucket(name: str, url: str) -> Finding:
    try:
        folder_at(url).promptly(BUCKET_SECONDS).mark()
    except (OSError, ValueError, SettingsError) as error:
        hint = f"Set EXPUNGE_{name.upper()}, and the AWS_* variables with its endpoint and credentials."
        return Finding(name, False, f"{url} cannot be read: {error}", hint)
    return Finding(name, True, f"{url} answers.")


def _overwritable(folder: Path | str) -> Finding:
    """Check that the filesystem overwrites in place: a key is destroyed by overwriting it."""
    if not isinstance(folder, Path):
        return Finding("key_folder", True, f"Workers refuse {folder} at their start if it keeps versions.")
    point, kind = filesystem_of(folder.absolute())
    if kind not in KEEPS_OLD_BLOCKS:
        return Finding("key_folder", True, f"What is overwritten in {folder} is not kept by its filesystem.")
    what = f"{folder} is on {point} ({kind}), which keeps old blocks when a file is overwritten: keys stay readable."
    return Finding("key_folder", False, what, "Set EXPUNGE_KEY_FOLDER to a folder on ext4 or xfs, without snapshots.")


def _disks(settings: Settings, reserve: int) -> Iterator[Finding]:
    """Yield one finding for each disk that the service writes to."""
    seen: set[int] = set()
    for folder in settings.folders:
        nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        disk = nearest.stat().st_dev
        if disk not in seen:
            seen.add(disk)
            yield _disk(nearest, reserve)


def _disk(folder: Path, reserve: int) -> Finding:
    free = shutil.disk_usage(folder).free
    what = f"{free / 1e9:.1f} GB are free under {folder}."
    if free >= reserve:
        return Finding("disk", True, what)
    hint = f"Make room: {reserve / 1e9:.1f} GB must be free, because each version needs its checkpoint."
    return Finding("disk", False, what, hint)


def _broker(url: str) -> Finding:
    address = urlsplit(url)
    if address.scheme == "filesystem":
        return _folder("broker", Path(address.path))
    place = f"{address.hostname}:{address.port or (5672 if address.scheme.startswith('amqp') else 6379)}"
    try:
        log_in(url)
    except LoginRefused:
        return Finding("broker", False, f"{place} refuses this user or password.", "Set EXPUNGE_BROKER_URL.")
    except Silent as error:
        hint = "Requests are kept and worked off by the sweep, later. Start the broker."
        return Finding("broker", False, f"{place} does not answer ({error}).", hint)
    return Finding("broker", True, f"{place} answers.")


def lacks_file(database_url: str) -> bool:
    """Return whether the URL names an SQLite file that is not there: opening it would create one."""
    url = make_url(database_url)
    return url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file()


def _database(
    settings: Settings, clock: Callable[[], float], lease_seconds: float, silent: Collection[str]
) -> Iterator[Finding]:
    shown = make_url(settings.database_url).render_as_string(hide_password=True)
    if lacks_file(settings.database_url):
        yield Finding("database", False, f"There is no file behind {shown}.", "Run `expunge migrate`.")
        return
    try:
        database = Database(settings.database_url)
        state = schema_state(database)
    except SettingsError as error:
        yield Finding("database", False, str(error), "Set EXPUNGE_DATABASE_URL.")
        return
    except (Busy, SQLAlchemyError, ValueError, OSError) as error:
        yield Finding(
            "database",
            False,
            f"{shown} cannot be used ({type(error).__name__}).",
            "Start the database, or set EXPUNGE_DATABASE_URL.",
        )
        return
    try:
        yield Finding("database", True, f"{shown} answers.")
        yield _schema(state)
        yield _clock("this machine", _skew(database, clock))
        if state is SchemaState.CURRENT:
            yield _heartbeat(database, "worker", lease_seconds)
            yield _heartbeat(database, "scheduler", lease_seconds)
            yield from _untaken(database)
            yield from _drained(database)
            yield from _clocks(database, lease_seconds)
            yield from _pepper(database, settings)
            yield from _places(database, settings, silent)
            if "store" not in silent:
                yield from _witness(database, settings)
            yield from _exhausted(database)
            yield from _forms(database, settings.recipes)
            yield from _spellings(database)
            yield from _certificates(database)
    finally:
        database.close()


def _pepper(database: Database, settings: Settings) -> Iterator[Finding]:
    """Look whether the pepper is another installation's; yield no finding where it is right."""
    try:
        pepper = Pepper.load(settings.pepper_file)
    except (SettingsError, OSError):  # reported among the secrets
        return
    try:
        check_pepper(database, pepper)
    except SettingsError as error:
        yield Finding("pepper", False, str(error), "Then restart every process.")


def _places(database: Database, settings: Settings, silent: Collection[str]) -> Iterator[Finding]:
    """Look for a folder or bucket that is another installation's; yield no finding where all are right.

    ``silent`` are the settings of those that did not answer before: they are not waited for again.
    Workers and the scheduler look at the key store too, when they start.
    """
    for setting in ("store", "private_store", "key_folder"):
        if setting in silent:
            continue
        name = setting if setting == "store" else place_name(setting, settings.served_tenants)
        try:
            check_places(database, {name: folder_at(getattr(settings, setting)).promptly(BUCKET_SECONDS)})
        except SettingsError as error:
            yield Finding(setting, False, str(error), "Then restart every process.")
        except (Busy, ValueError):  # reported as not readable
            continue


def _witness(database: Database, settings: Settings) -> Iterator[Finding]:
    """Compare the database with the store; yield no finding where they agree, or the store is silent (``store``)."""
    try:
        Guard(database, folder_at(settings.store)).look()
    except PutBack as error:
        hint = "Nothing is taken in, published, signed or handed out until then."
        yield Finding("witness", False, str(error), hint)
    except (Busy, OSError, ValueError, SettingsError):
        return


def _exhausted(database: Database) -> Iterator[Finding]:
    """Find models with an exhausted budget while requests wait. That is well only where a retrain is planned or
    runs.
    """
    with database.read() as session:
        waiting = (
            select(Model.id, Model.name, func.count(Task.id))
            .join(Task, Task.model_id == Model.id)
            .where(Model.status == "exhausted", Task.status.in_(("queued", "running", "blocked")))
            .where(
                func.coalesce(Task.reason, "").in_(
                    ("", Reason.BUDGET_EXHAUSTED, Reason.AWAITING_RETRAIN, Reason.RETRAIN_REFUSED)
                )
            )
            .group_by(Model.id, Model.name)
            .order_by(Model.name)
        )
        for model_id, name, count in session.execute(waiting).all():
            finding = by_reason(f"budget of {name}", Reason.BUDGET_EXHAUSTED, {}, name, f" {count} requests wait.")
            if candidate_of(session, model_id) is not None:
                finding = Finding(finding.name, True, f"{finding.what} A retrain is planned or runs.")
            yield finding


def _forms(database: Database, recipes: Path) -> Iterator[Finding]:
    """Find served models that were registered with a recipe without rows: their deletions wait for a port."""
    with database.read() as session:
        old = old_forms(session, recipes)
    if old.unwritten:
        yield Finding("old recipes", True, old.rewrites())
    if old.unported:
        yield Finding("ports", False, old.ports(), " ".join(f"`expunge models port {name}`" for name in old.unported))


_COMPARED = {
    Compared.EXACTLY: "are compared exactly only, until its next training: a misspelled one ends as no_match.",
    Compared.BY_FORMS: "are compared with nearly equal ones alone: those of its people look in too many ways for any "
    "to be unusual, so one of another kind ends as no_match.",
}


def _spellings(database: Database) -> Iterator[Finding]:
    """Say of which models' people the ids of requests are compared with less than everything. That is no fault."""
    with database.read() as session:
        served = select(Model.name, Generation).join(Generation, Generation.id == Model.generation_id)
        served = served.where(Model.status.in_(("live", "exhausted"))).order_by(Model.name)
        for name, generation in session.execute(served):
            compared = Compared.of(generation)
            if compared in _COMPARED:
                yield Finding(f"ids of {name}", True, f"Ids of requests {_COMPARED[compared]}")


def _certificates(database: Database) -> Iterator[Finding]:
    """Find certificates that the scheduler refuses to sign."""
    with database.read() as session:
        rows = select(Certificate).where(Certificate.refused.is_not(None), Certificate.issued_at.is_(None))
        for row in session.scalars(rows.order_by(Certificate.completed_at).limit(_NAMED)):
            what = f"The certificate of request {row.request_id} is not signed. {row.refused}"
            hint = "The database was edited: run `expunge audit verify`, and restore what was published."
            yield Finding("certificate", False, what, hint)


def _schema(state: SchemaState) -> Finding:
    hints = {
        SchemaState.CURRENT: "",
        SchemaState.BEHIND: "Run `expunge migrate`.",
        SchemaState.AHEAD: "Install the newer release that migrated it.",
    }
    return Finding("schema", state is SchemaState.CURRENT, f"The schema is {state}.", hints[state])


def _skew(database: Database, clock: Callable[[], float]) -> float:
    """Return by how many seconds this machine's clock is ahead of the database's, at most."""
    before = clock()
    with database.read() as session:
        theirs = now(session) / SECOND
    # the database looked at its clock somewhere between our two looks at ours
    after = clock()
    return max(before - theirs, 0.0) + min(after - theirs, 0.0)


def _untaken(database: Database) -> Iterator[Finding]:
    """Look for models that no living worker takes; yield nothing where each is taken, or no worker lives."""
    with database.read() as session:
        for model in untaken(session):
            what = f"No running worker takes the model {model.name}, which needs {needs_of(model)}."
            yield Finding(
                "places", False, what, "Start one there: EXPUNGE_DEVICE names its device, EXPUNGE_PLACES its groups."
            )


def _drained(database: Database) -> Iterator[Finding]:
    """Tell how many living workers an operator drained; a fault where none takes work."""
    with database.read() as session:
        workers = [state for state in worker_states(session) if state.kind == "worker"]
    drained = [state.process for state in workers if state.asked]
    if drained:
        what = f"Drained: {', '.join(drained)}, of {len(workers)} living workers."
        yield Finding("drained", len(drained) < len(workers), what, "`expunge drain --undo` lets them take work again.")


def _clocks(database: Database, lease_seconds: float) -> Iterator[Finding]:
    """Check the clocks of living processes, as reported with their last heartbeat. Right ones are not named."""
    with database.read() as session:
        since = now(session) - int(lease_seconds * SECOND)
        told = select(Heartbeat.process, Heartbeat.skew).where(Heartbeat.beat_at >= since, Heartbeat.skew.is_not(None))
        for process, skew in session.execute(told.order_by(Heartbeat.process)):
            finding = _clock(process, (skew or 0) / SECOND)
            if not finding.well:
                yield finding


def _clock(whose: str, skew: float) -> Finding:
    if abs(skew) <= SKEW_SECONDS:
        return Finding("clock", True, f"The clock of {whose} agrees with the database's within {SKEW_SECONDS} s.")
    way = "ahead of" if skew > 0 else "behind"
    what = f"The clock of {whose} is {abs(skew):.0f} s {way} the database's."
    return Finding("clock", False, what, "Let both machines set their clocks by NTP.")


def _heartbeat(database: Database, kind: str, lease_seconds: float) -> Finding:
    with database.read() as session:
        beats = select(Heartbeat.beat_at).where(Heartbeat.kind == kind).order_by(Heartbeat.beat_at.desc()).limit(1)
        last = session.scalar(beats)
        seconds = None if last is None else abs(now(session) - last) / SECOND  # one of the future is no sign of life
    if seconds is None:
        return Finding(
            kind, False, f"No {kind} has ever run.", f"Start `expunge run {kind}`, or everything with `expunge up`."
        )
    if seconds > max(lease_seconds, ALIVE_SECONDS):  # a busy machine may beat late
        return Finding(kind, False, f"The last {kind} was seen {seconds:.0f} s ago.", f"Start `expunge run {kind}`.")
    return Finding(kind, True, f"A {kind} was seen {seconds:.0f} s ago.")
