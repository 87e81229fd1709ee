"""``up``, ``run``, ``migrate``: commands that run the service itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Annotated, get_args

import httpx
import typer
from sqlalchemy import make_url

from expunge_client.cli.client import Account
from expunge_client.cli.output import CommandError, errors, output
from expunge_service.access import Scope, authenticate, create_key, make_link
from expunge_service.audit import Signer, check_key, newest_key
from expunge_service.cli.errors import told
from expunge_service.cli.forked import import_for_forks
from expunge_service.cli.supervisor import Child, Supervisor, card_workers, cards, children
from expunge_service.infra.db import Busy, Database
from expunge_service.infra.migrate import compare, schema_state
from expunge_service.infra.migrate import migrate as migrate_schema
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.python import PYTHON
from expunge_service.infra.settings import REGULATION_FILE, RegulationName, Settings, ensure_secrets, session_key
from expunge_service.models import old_forms

READY_SECONDS = 90.0
DATABASE_SECONDS = 60.0
"""that ``migrate`` waits for a server that is still starting"""
IMPORTED = ("expunge_service.serve", "expunge_workers.scheduler.run", "expunge_workers.runtime.process")
"""what the four processes import, but for torch"""
run = typer.Typer(no_args_is_help=True, help="One process alone, in the foreground: api, worker, updater, scheduler.")


@told()
def migrate() -> None:
    """Bring the database to the schema of this release; in development also create missing secrets."""
    try:
        settings = Settings()
        await_database(settings.database_url)
        database = prepare(settings)
        compare(database)
        with database.read() as session:
            old = old_forms(session, settings.recipes)
        database.close()
    except RuntimeError as error:
        raise CommandError(str(error), "docs/install.md says in which order.") from error
    errors.print("The database has the current schema.")
    for sentence in filter(None, (old.rewrites(), old.ports())):
        errors.print(sentence, soft_wrap=True)


def await_database(url: str, seconds: float = DATABASE_SECONDS, pause: float = 1.0) -> None:
    """Wait until the server of a database answers; a file is not waited for.

    Raises CommandError with what it said last.
    """
    if make_url(url).get_backend_name() == "sqlite":
        return
    shown, deadline, tells = make_url(url).render_as_string(hide_password=True), time.monotonic() + seconds, True
    while True:
        database = Database(url)
        try:
            schema_state(database)
        except Busy as error:
            said = _said(error)
        else:
            return
        finally:
            database.close()
        if time.monotonic() > deadline:
            hint = "Start the database, or set EXPUNGE_DATABASE_URL, and run `expunge migrate` again."
            raise CommandError(f"{shown} did not answer within {seconds:g} s: {said}", hint)
        if tells:
            errors.print(f"{shown} does not answer yet; waiting for up to {seconds:g} s: {said}", markup=False)
        tells = False
        time.sleep(pause)


def _said(error: Busy) -> str:
    """Return the first line of what the database's driver said: it has no password."""
    reason = getattr(error.__cause__, "orig", None) or error
    return str(reason).strip().splitlines()[0]


@run.command("api")
@told()
def api() -> None:
    """Run the API process alone, in the foreground."""
    host, port = Settings().address
    _become(["-m", "expunge_service.serve", "--host", host, "--port", str(port)])


@run.command("worker")
@told()
def worker(
    gpus: Annotated[str | None, typer.Option(help="`all`: a worker for each NVIDIA card, or slice of one.")] = None,
) -> None:
    """Run a worker process alone, in the foreground."""
    if gpus is None:
        _become(["-m", "expunge_workers.main", "worker"])
    if gpus != "all":
        raise CommandError(f"--gpus is {gpus!r}.", "Say all, or set EXPUNGE_DEVICE=cuda:N for one card.")
    home, uuids = Settings().home, cards(_listing())
    if not uuids:
        raise CommandError("nvidia-smi lists no card.", "`expunge run worker` computes on the CPU.")
    signal.signal(signal.SIGTERM, _interrupt)
    supervisor = Supervisor(card_workers(home, uuids), errors.print)
    errors.print(f"{len(uuids)} workers, whose logs are in {home / 'logs'}.")
    _keep_running(supervisor)


def _listing() -> str:
    """Return the list of this machine's cards, without opening any: a process that opened one holds its memory."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60)  # noqa: S607  # nosec B607
    except (OSError, subprocess.SubprocessError) as error:
        raise CommandError(
            f"nvidia-smi did not list the cards: {type(error).__name__}.", "Install the driver, or leave --gpus out."
        ) from error
    return done.stdout


def _keep_running(supervisor: Supervisor, started: Callable[[], None] = lambda: None) -> None:
    """Start the children, and keep them running until Ctrl-C or a signal."""
    try:
        supervisor.start()
        started()
        while True:
            supervisor.watch()
            time.sleep(0.5)
    except KeyboardInterrupt:
        errors.print("stopping ...")
    finally:
        supervisor.stop()
    errors.print("stopped.")


@run.command("updater")
def updater() -> None:
    """Run an updater alone, in the foreground: a worker that takes deletions which other workers are too busy for."""
    _become(["-m", "expunge_workers.main", "updater"])


@run.command("scheduler")
def scheduler() -> None:
    """Run the scheduler process alone, in the foreground."""
    _become(["-m", "expunge_workers.main", "scheduler"])


@told()
def up(
    port: Annotated[int | None, typer.Option(help="Port of the API; 0 takes a free one.")] = None,
) -> None:
    """Start API, worker, updater and scheduler; keep them running until Ctrl-C."""
    settings = Settings()
    host, listening = settings.address
    chosen = _port(host, listening if port is None else port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{chosen}"
    signal.signal(signal.SIGTERM, _interrupt)
    errors.print(f"home: {settings.home}")
    database = prepare(settings)
    _settle_regulation(settings)
    # absolute: the children may have another working folder
    environment = os.environ | {"EXPUNGE_HOME": str(settings.home)}
    forked = sys.platform == "linux"
    if forked:
        import_for_forks(IMPORTED)
        database.close()  # nothing of it may be open where a process is forked, also later
    supervisor = Supervisor(children(settings.home, host, chosen, environment, forked=forked), errors.print)

    def started() -> None:
        errors.print("starting api, worker, updater, scheduler ...")
        await_ready(url, supervisor)
        account = _account(settings, database, url)
        _greet(account, _link(settings, database, account))
        database.close()

    _keep_running(supervisor, started)


def _settle_regulation(settings: Settings) -> None:
    """Ask at the first start which law sets the deadlines. Where no terminal can answer, name the setting."""
    if "regulation" in settings.model_fields_set:
        return
    if not sys.stdin.isatty():
        errors.print(
            "No regulation is set: a request that names none has no deadline. Set EXPUNGE_REGULATION, "
            "for example to gdpr, or to none.",
            soft_wrap=True,
        )
        return
    names = (*get_args(RegulationName), "none")

    def named(answer: str) -> str:
        if answer.strip().lower() not in names:
            raise typer.BadParameter(f"{answer!r} is none of {', '.join(names)}.")
        return answer.strip().lower()

    question = f"Which law sets the deadline of a deletion request that names none? ({', '.join(names)})"
    answer = typer.prompt(question, value_proc=named, err=True)
    (settings.home / REGULATION_FILE).write_text(f"{answer}\n")


def prepare(settings: Settings) -> Database:
    """Make secrets (development only), a current schema, and a file with the log's public key for others to take.

    Never a retired key: a rotation may not have reached the folder of this command's secret files. Raises
    SettingsError, RuntimeError, OSError.
    """
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    ensure_secrets(settings)
    database = Database(settings.database_url)
    migrate_schema(database)
    public = Signer.of(settings).verifier
    with database.read() as session:
        check_key(newest_key(session), public)
    (settings.home / "log.vkey").write_text(f"{public}\n")
    return database


def await_ready(url: str, supervisor: Supervisor, seconds: float = READY_SECONDS) -> None:
    """Wait until /readyz answers 200. Raises CommandError with what it said last."""
    deadline = time.monotonic() + seconds
    said = "nothing"
    while time.monotonic() < deadline:
        supervisor.watch()
        try:
            answer = httpx.get(f"{url}/readyz", timeout=2, trust_env=False)
        except httpx.TransportError as error:
            said = type(error).__name__
        else:
            if answer.status_code == httpx.codes.OK:
                return
            said = answer.text
        time.sleep(0.2)
    logs = "\n".join(f"--- {child.log}\n{child.last_words()}" for child in supervisor.members if not _quiet(child))
    raise CommandError(
        f"The service is not ready after {seconds:g} s: {said}", logs or "`expunge doctor` looks closer."
    )


def _quiet(child: Child) -> bool:
    return not child.last_words()


def _account(settings: Settings, database: Database, url: str) -> Account:
    """Return the stored key if it still opens the service, else make a new one and write it to client.json."""
    stored = Account.read(settings.home)
    key = stored.api_key if stored and _opens(url, stored.api_key) else _new_key(settings, database)
    account = Account(url, key)
    account.write(settings.home)
    return account


def _new_key(settings: Settings, database: Database) -> str:
    with database.write() as session:
        return create_key(session, Pepper.load(settings.pepper_file), label="expunge up", scopes=Scope).secret


def _opens(url: str, key: str) -> bool:
    answer = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=10, trust_env=False)
    return answer.status_code != httpx.codes.UNAUTHORIZED


def _link(settings: Settings, database: Database, account: Account) -> str | None:
    """Return the address of the page: with a log-in link where the service listens on this machine alone.

    None: the API serves no page.
    """
    if not settings.console:
        return None
    try:
        if not ip_address(settings.address[0]).is_loopback:
            return account.url
    except ValueError:
        return account.url
    with database.read() as session:
        caller = authenticate(session, Pepper.load(settings.pepper_file), account.api_key)
        if caller is None:
            return account.url
        return f"{account.url}/#login={make_link(session, session_key(settings), caller.key_id)}"


def _greet(account: Account, page: str | None) -> None:
    header = f'-H "Authorization: Bearer {account.api_key}"'
    json_header = '-H "Content-Type: application/json"'
    model = '{"name": "digits", "recipe": "digits", "method": "recollection"}'
    address = [] if page is None else [f"The page: {page}"]
    if page not in (None, account.url):
        address.append("  (this link logs you in once, within five minutes, on this machine)")
    lines = [
        *address,
        f"Expunge runs at {account.url} (its calls: {account.url}/openapi.json)",
        f"API key: {account.api_key}",
        "",
        f"curl -s {account.url}/v1/models {header} {json_header} -d '{model}'",
        f"curl -s {account.url}/v1/deletion-requests {header} {json_header} \\",
        '     -H "Idempotency-Key: my-first-request" -d \'{"subject_id": "person-001"}\'',
        f"curl -s {account.url}/v1/models/digits/versions {header}",
        "",
        "Ctrl-C stops it.",
    ]
    for line in lines:
        output.print(line, markup=False, soft_wrap=True)


def _port(host: str, wanted: int) -> int:
    """Return the wanted port, or a free one for 0. Raises CommandError where it is taken."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted))
        except OSError as error:
            raise CommandError(
                f"Port {wanted} on {host} cannot be used: {error.strerror}.",
                "Is Expunge running already? Choose another with --port, or --port 0 for a free one.",
            ) from error
        return int(probe.getsockname()[1])


def _become(arguments: list[str]) -> None:
    """Replace this process, so that signals reach the real one."""
    os.execv(PYTHON[0], [*PYTHON, *arguments])  # noqa: S606


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
