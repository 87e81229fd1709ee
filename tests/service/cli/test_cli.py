"""The command line by itself: exit codes, one line and a hint, and what it sends where."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from expunge_client.cli import output
from expunge_client.cli.client import Account, Client
from expunge_client.cli.main import main
from expunge_client.cli.output import CommandError
from expunge_service.api.routes.models.models import Registration
from expunge_service.cli.checks import Finding
from tests.harness.s3 import silent
from tests.harness.servers import free_port

ROOT = Path(__file__).parents[3]
Answer = tuple[int, object]


@dataclass
class Site:
    """An HTTP server that gives the answers it was told, in turn, and the last one for ever."""

    answers: list[Answer] = field(default_factory=list)
    calls: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    url: str = ""

    def next(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            site.bodies.append(json.loads(body) if body else None)
            site.calls.append((self.command, self.path, dict(self.headers)))
            status, answer = site.next()
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


def expunge(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXPUNGE_")}
    variables = kept | {"EXPUNGE_HOME": str(home)} | environment
    command = [sys.executable, "-m", "expunge_client.cli.main", *arguments]
    return subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)


def here(*arguments: str, home: Path, typed: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Do as ``expunge``, in this process: another one takes half a second. ``typed`` is what is read from the input."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXPUNGE_")}
    variables = kept | {"EXPUNGE_HOME": str(home)} | environment
    with (
        patch.dict(os.environ, variables, clear=True),
        patch.object(sys, "argv", ["expunge", *arguments]),
        patch.object(sys, "stdin", io.StringIO(typed)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def test_a_refusal_is_one_line_and_a_hint_and_exit_1(site: Site, tmp_path: Path) -> None:
    fault = {"pointer": "/models/0", "detail": "There is no such model."}
    site.answers = [(422, {"detail": "The request names models that do not exist.", "errors": [fault]})]
    keys = {"EXPUNGE_URL": site.url, "EXPUNGE_API_KEY": "k"}
    done = expunge("delete", "--model", "nope", "--subject", "someone", home=tmp_path, **keys)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == (
        "error: The request names models that do not exist. /models/0: There is no such model."
    )
    assert "Traceback" not in done.stderr


def test_every_field_of_a_policy_can_be_said_on_the_command_line(site: Site, tmp_path: Path) -> None:
    """What the API takes and what the command sends are the same set of names; sizes and options as they are typed."""
    options = {
        "recipe": "r", "method": "newton", "fallback": "retrain", "guarantee": "calibrated",
        "epsilon": "2", "batch": "2h", "retrain-every": "7d",
    }  # fmt: skip
    fields = {
        "delta": "1e-6", "noise_std": "0.5", "max_distance": "0.01", "granularity": "subject",
        "reference": "renormalised", "max_accuracy_drop": "null",
        "complete_when": "served", "place": "cpu", "twins": "ask",
        "calibration": '{"alpha": 0.2, "orders": 4, "sizes": [1, 4]}',
    }  # fmt: skip
    site.answers = [(202, {"name": "m"})]
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    flags += [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
    flags += ["--option", "damping=0.1", "--leave-out-forgotten"]
    keys = {"EXPUNGE_URL": site.url, "EXPUNGE_API_KEY": "k"}
    done = here("models", "add", "m", *flags, "--no-wait", home=tmp_path, **keys)
    assert done.returncode == 0, done.stderr
    sent = site.bodies[0]
    assert set(sent) == set(Registration.model_fields)
    assert sent["calibration"] == {"alpha": 0.2, "orders": 4, "sizes": [1, 4]}
    assert sent["options"] == {"damping": 0.1} and sent["leave_out_forgotten"] is True
    assert (sent["max_accuracy_drop"], sent["batch"], sent["retrain_every"]) == (None, 7200, 604_800)
    policy = Registration.model_validate(sent).policy()
    assert (policy.fallback, policy.guarantee) == ("retrain", "calibrated")
    wrong = here("models", "add", "m", "--recipe", "r", "--batch", "2 weeks", home=tmp_path, **keys)
    assert wrong.returncode == 2 and "is no duration" in wrong.stderr


def test_a_registration_ends_with_the_dry_run(site: Site, tmp_path: Path) -> None:
    rows = [{"noise_std": 0.1, "max_distance": 1e-5, "accuracy": 0.9375, "updates": 70000}]
    report = {"distance_left": 0.25, "dry_run": rows}
    ready = {"progress": 1.0, "phase": None, "work_units": None, "report": report}
    answers = [(202, {"name": "m"}), (200, {"name": "m", "status": "live", "preparation": ready})]
    keys = {"EXPUNGE_URL": site.url, "EXPUNGE_API_KEY": "k"}
    site.answers = [*answers]
    brief = here("models", "add", "m", "--recipe", "r", home=tmp_path, **keys)
    assert brief.stdout == "m                 live\n  accuracy        93.8% with noise 0.1\n"
    site.answers = [*answers]
    done = here("models", "add", "m", "--recipe", "r", "--verbose", home=tmp_path, **keys)
    assert done.returncode == 0, done.stderr
    assert "dry run" in done.stdout and "accuracy" in done.stdout
    assert ["0.1", "1e-05", "0.9375", "70000"] in [line.split() for line in done.stdout.splitlines()]


def test_a_service_that_does_not_answer_is_exit_3(tmp_path: Path) -> None:
    nowhere = {"EXPUNGE_URL": f"http://127.0.0.1:{free_port()}", "EXPUNGE_API_KEY": "k"}
    done = here("models", "list", home=tmp_path, **nowhere)
    assert done.returncode == 3
    assert "does not answer" in done.stderr
    assert "hint: " in done.stderr


def test_without_a_service_or_key_the_hint_says_what_to_do(tmp_path: Path) -> None:
    done = here("models", "list", home=tmp_path)
    assert done.returncode == 3
    assert "expunge up" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["delete"], ["delete", "--subject", "a", "--sample", "b"], ["nonsense"], ["models", "show"]]
)
def test_wrong_usage_is_exit_2(arguments: list[str], tmp_path: Path) -> None:
    assert here(*arguments, home=tmp_path).returncode == 2


def test_a_setting_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    done = here("doctor", home=tmp_path, EXPUNGE_LISTEN="eighty")
    assert done.returncode == 2
    assert "EXPUNGE_LISTEN" in done.stderr


@pytest.fixture
def no_worker_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the process that loads torch: ``tests/workers/test_doctor.py`` asks it."""
    monkeypatch.setattr("expunge_service.cli.commands.doctor.ask_worker", tuple)


@pytest.mark.usefixtures("no_worker_is_asked")
def test_doctor_waits_a_few_seconds_for_what_is_silent_and_says_what_it_looks_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr("expunge_service.cli.checks.BUCKET_SECONDS", 2)
    here("migrate", home=tmp_path)
    buckets = {f"EXPUNGE_{name}": f"s3://b/{name}" for name in ("STORE", "PRIVATE_STORE", "KEY_FOLDER")}
    with silent():
        broker = os.environ["AWS_ENDPOINT_URL"].replace("http", "redis")
        start = time.monotonic()
        done = here("doctor", home=tmp_path, EXPUNGE_BROKER_URL=broker, **buckets)
    assert time.monotonic() - start < 20  # 5 s on an idle machine
    assert done.stderr.startswith("looking at secrets, stores, broker and database ...\n")
    for name in ("store", "private_store", "key_folder"):
        assert re.search(rf"^  {name} +s3://b/{name.upper()} cannot be read", done.stdout, re.MULTILINE)


@pytest.mark.usefixtures("no_worker_is_asked")
def test_doctor_says_what_is_missing_and_fails(tmp_path: Path) -> None:
    done = here("doctor", "--json", home=tmp_path / "new")
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 1
    assert not found["pepper_file"]["well"]
    assert "migrate" in found["database"]["hint"]
    assert not (tmp_path / "new").exists(), "looking changes nothing"


@pytest.mark.usefixtures("no_worker_is_asked")
def test_doctor_sees_a_secret_that_others_can_read(tmp_path: Path) -> None:
    assert here("migrate", home=tmp_path).returncode == 0
    (tmp_path / "secrets" / "pepper").chmod(0o644)
    found = {each["name"]: each for each in json.loads(here("doctor", "--json", home=tmp_path).stdout)}
    assert "chmod 600" in found["pepper_file"]["hint"]
    assert found["sealing_key_file"]["well"]
    assert found["schema"]["well"]
    assert not found["worker"]["well"]


def test_doctor_says_which_user_cannot_read_a_secret(tmp_path: Path) -> None:
    """A folder in the file's place: root reads every file."""
    here("migrate", home=tmp_path)
    (tmp_path / "secrets" / "pepper").unlink()
    (tmp_path / "secrets" / "pepper").mkdir()
    found = {each["name"]: each for each in json.loads(here("doctor", "--json", home=tmp_path).stdout)}
    assert f"cannot be read by the user {os.geteuid()}: Is a directory." in found["pepper_file"]["what"]
    assert "chown" in found["pepper_file"]["hint"]


@pytest.mark.parametrize(
    ("wrong", "asked"), [("pepper", False), ("private_store", False), ("witness", False), ("broker", True)]
)
def test_doctor_looks_at_no_generation_that_looks_lost_and_is_not(
    wrong: str, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that all samples were gone, and to train every model again."""
    commands = "expunge_service.cli.commands.doctor"
    monkeypatch.setattr(f"{commands}.examine", lambda _: iter([Finding(wrong, False, "wrong")]))
    monkeypatch.setattr(f"{commands}.ask_worker", lambda: [Finding("generation of m", False, "gone")])
    found = json.loads(here("doctor", "--json", home=tmp_path).stdout)
    assert ("generation of m" in {each["name"] for each in found}) is asked


@pytest.mark.usefixtures("no_worker_is_asked")
def test_doctor_never_promises_that_migrate_makes_a_secret_of_production(tmp_path: Path) -> None:
    told = here("doctor", "--json", home=tmp_path, EXPUNGE_MODE="production").stdout
    found = {each["name"]: each for each in json.loads(told)}
    assert "all four files" in found["sealing_key_file"]["hint"]
    assert "In development `expunge migrate` creates it" in found["sealing_key_file"]["what"]


def test_a_file_in_a_folder_that_is_missing_names_the_folder(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home has no part in it."""
    monkeypatch.setattr("expunge_service.cli.commands.audit.signed_log", lambda _: ("", []))
    for command in (["audit", "export"], ["backup"]):
        done = here(*command, str(tmp_path / "no" / "x"), home=tmp_path, EXPUNGE_URL=site.url, EXPUNGE_API_KEY="k")
        told = f"error: There is no folder {tmp_path / 'no'}.\n hint: Make it, or name another.\n"
        assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.parametrize("fails", [False, True])
def test_a_dump_of_postgresql_is_private_and_whole_or_not_there(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "pg_dump"
    tool.write_text(f'#!/bin/sh\necho rows > "${{2#--file=}}"\nexit {int(fails)}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    copy = tmp_path / "copy"
    done = here("backup", str(copy), home=tmp_path, EXPUNGE_DATABASE_URL="postgresql://nowhere/x")
    assert done.returncode == int(fails), done.stderr
    assert copy.exists() is not fails
    assert fails or copy.stat().st_mode & 0o777 == 0o600


def test_a_dump_gets_the_password_and_not_in_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "pg_dump"
    tool.write_text('#!/bin/sh\necho "$3 $PGPASSWORD" > "${2#--file=}"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    url = "postgresql+psycopg://expunge:p%40ss@postgres:5432/expunge?sslmode=require"
    done = here("backup", str(tmp_path / "copy"), home=tmp_path, EXPUNGE_DATABASE_URL=url)
    assert done.returncode == 0, done.stderr
    told = "postgresql://expunge@postgres:5432/expunge?sslmode=require p@ss\n"
    assert (tmp_path / "copy").read_text() == told


def test_a_folder_gets_a_copy_of_the_moment_and_loses_those_that_are_too_old(tmp_path: Path) -> None:
    here("migrate", home=tmp_path)
    folder = tmp_path / "copies"
    folder.mkdir()
    now = datetime.now(UTC)
    old, young = (f"expunge-{now - timedelta(days=days):%Y%m%dT%H%M%SZ}.db" for days in (15, 13))
    for name in (old, young, "mine.db"):
        (folder / name).touch()
    done = here("backup", str(folder), "--keep", "14d", home=tmp_path)
    assert done.returncode == 0, done.stderr
    left = {path.name for path in folder.iterdir()}
    (made,) = left - {young, "mine.db"}
    assert re.fullmatch(r"expunge-\d{8}T\d{6}Z\.db", made) and (folder / made).stat().st_size > 0
    assert (folder / made).stat().st_mode & 0o777 == 0o600
    refused = here("backup", str(folder / "one"), "--keep", "14d", home=tmp_path)
    assert refused.returncode == 2 and "is no folder" in refused.stderr and not (folder / "one").exists()


def test_a_copy_that_fails_deletes_no_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "pg_dump"
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    folder = tmp_path / "copies"
    folder.mkdir()
    (folder / "expunge-20200101T000000Z.dump").touch()
    database = {"EXPUNGE_DATABASE_URL": "postgresql://nowhere/x"}
    done = here("backup", str(folder), "--keep", "14d", home=tmp_path, **database)
    assert done.returncode == 1 and "pg_dump failed" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["expunge-20200101T000000Z.dump"]


def test_a_key_is_made_listed_and_revoked(tmp_path: Path) -> None:
    here("migrate", home=tmp_path)
    made = json.loads(
        here("keys", "create", "--scope", "models:read", "--expires", "2d", "--json", home=tmp_path).stdout
    )
    listed = json.loads(here("keys", "list", "--json", home=tmp_path).stdout)
    assert [key["scopes"] for key in listed] == [["models:read"]]
    assert made["key"] not in json.dumps(listed)
    assert (listed[0]["actor"], listed[0]["held_by"]) == (made["actor"], None)
    second = json.loads(here("keys", "create", "--actor", made["actor"], "--json", home=tmp_path).stdout)
    assert second["actor"] == made["actor"]
    assert "keys list" in here("keys", "create", "--actor", "nobody", home=tmp_path).stderr
    assert here("keys", "revoke", made["prefix"], home=tmp_path).returncode == 0
    assert here("keys", "revoke", made["prefix"], home=tmp_path).returncode == 1


def test_how_long_a_key_is_valid_is_written_as_a_duration(tmp_path: Path) -> None:
    here("migrate", home=tmp_path)
    made = json.loads(here("keys", "create", "--expires", "90d", "--json", home=tmp_path).stdout)
    rotated = here("keys", "rotate", made["prefix"], "--overlap", "12h", "--json", home=tmp_path)
    successor = json.loads(rotated.stdout)
    assert set(successor) == set(made) and successor["actor"] == made["actor"] and successor["key"] != made["key"]
    new, old = sorted(
        json.loads(here("keys", "list", "--json", home=tmp_path).stdout), key=lambda key: key["id"] == made["id"]
    )
    at = [
        datetime.fromisoformat(each)
        for each in (old["created_at"], old["expires_at"], new["created_at"], new["expires_at"])
    ]
    hours = [(at[1] - at[0]) / timedelta(hours=1), (at[3] - at[2]) / timedelta(hours=1)]
    assert hours == [pytest.approx(12, abs=0.1), pytest.approx(90 * 24, abs=0.1)]
    for wrong in ("90 days", "0", "40000d"):
        refused = here("keys", "create", "--expires", wrong, home=tmp_path)
        assert refused.returncode == 2 and wrong in refused.stderr
    assert len(json.loads(here("keys", "list", "--json", home=tmp_path).stdout)) == 2


def test_who_makes_a_key_reads_what_its_scopes_tell_together(tmp_path: Path) -> None:
    here("migrate", home=tmp_path)
    said = here("keys", "create", "--role", "viewer", "--scope", "deletions:write", home=tmp_path).stderr
    assert "deletions:write and audit:read and deletions:read" in said and "who is in the data" in said
    assert "who is in the data" not in here("keys", "create", "--role", "privacy", home=tmp_path).stderr
    assert "who is in the data" not in here("keys", "create", "--role", "viewer", home=tmp_path).stderr


def test_a_list_is_followed_to_its_end(site: Site) -> None:
    site.answers = [
        (200, {"data": [{"n": 1}], "next_cursor": "c", "has_more": True}),
        (200, {"data": [{"n": 2}], "next_cursor": None, "has_more": False}),
    ]
    with Client(Account(site.url, "k")) as client:
        assert [row["n"] for row in client.pages("/v1/models")] == [1, 2]
    assert site.calls[1][1] == "/v1/models?cursor=c"


@pytest.mark.parametrize("command", [["migrate"], ["up"]], ids=" ".join)
def test_a_home_that_cannot_be_a_folder_is_one_line(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    done = here(*command, home=home)
    told = f"error: EXPUNGE_HOME: '{home}' is no folder. Write the path of one, as /srv/expunge.\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_a_busy_service_is_asked_again_with_the_same_idempotency_key(site: Site) -> None:
    site.answers = [(503, {}), (503, {}), (202, {"id": "x"})]
    with Client(Account(site.url, "k")) as client:
        assert client.post("/v1/deletion-requests", {}, "once") == {"id": "x"}
    assert {headers["Idempotency-Key"] for _, _, headers in site.calls} == {"once"}


def test_an_answer_that_is_no_problem_document_is_still_one_line(site: Site) -> None:
    site.answers = [(500, "not what we expect")]
    with Client(Account(site.url, "k")) as client, pytest.raises(CommandError) as refused:
        client.get("/v1/models")
    assert str(refused.value) == "The service answered 500."


def test_a_stored_key_goes_to_its_own_service_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Account("http://127.0.0.1:1", "stored").write(tmp_path)
    assert (tmp_path / "client.json").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("EXPUNGE_HOME", str(tmp_path))
    monkeypatch.setenv("EXPUNGE_URL", "http://elsewhere.example")
    monkeypatch.delenv("EXPUNGE_API_KEY", raising=False)
    with pytest.raises(CommandError, match=r"elsewhere\.example, but the key in .* is for http:") as refused:
        Account.find(os.environ)
    assert "EXPUNGE_API_KEY" in refused.value.hint
    for same in ("http://127.0.0.1:1", "http://127.0.0.1:1/"):
        monkeypatch.setenv("EXPUNGE_URL", same)
        assert Account.find(os.environ) == Account("http://127.0.0.1:1", "stored")
    monkeypatch.setenv("EXPUNGE_URL", "http://elsewhere.example")
    monkeypatch.setenv("EXPUNGE_API_KEY", "given")
    assert Account.find(os.environ) == Account("http://elsewhere.example", "given")


@pytest.mark.parametrize("text", ["[/bold]", ":x:", "[red]a[/red]"])
def test_no_console_reads_markup(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All tables, facts and lines of the terminal go through these two; the commands that measure make theirs."""
    output.show_rows([{"a": text}], ("a",))
    output.show_facts({"a": text, "b": {text: [text]}})
    output.show_error(CommandError(text, text))
    assert "".join(capsys.readouterr()).count(text) == 6
    for path in [*ROOT.glob("service/**/*.py"), *ROOT.glob("workers/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Console":
                off = {each.arg for each in node.keywords if ast.unparse(each.value) == "False"}
                assert {"markup", "emoji"} <= off, path


def test_a_command_without_entry_point_names_its_package(tmp_path: Path) -> None:
    ours = [each for each in entry_points(group="expunge.commands") if each.name.startswith("Everyday.find")]
    with patch("expunge_client.cli.main.entry_points", return_value=ours):
        for command, package in (("drop", "expunge-connect"), ("lab", "expunge-lab"), ("up", "expunge")):
            done = here(command, home=tmp_path)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.splitlines() == [
                f"error: `expunge {command}` is part of {package}, which is not installed.",
                f" hint: pip install {package}",
            ]
        assert "find" in here("--help", home=tmp_path).stdout


def test_a_package_that_is_half_installed_hides_no_other_command(tmp_path: Path) -> None:
    broken = EntryPoint("Add-ons.half", "no_such_module:commands", "expunge.commands")
    with patch("expunge_client.cli.main.entry_points", return_value=[*entry_points(group="expunge.commands"), broken]):
        listed = here("--help", home=tmp_path)
        called = here("half", home=tmp_path)
    assert listed.returncode == 0 and "find" in listed.stdout and "cannot be loaded" in listed.stdout
    assert called.returncode == 2 and "No module named 'no_such_module'" in called.stderr
