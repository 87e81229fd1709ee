"""Commands against the real application, in this process."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from typer.testing import CliRunner

from expunge_client.cli.client import Client
from expunge_client.cli.commands import deletions
from expunge_client.cli.main import app
from expunge_client.cli.output import CommandError
from expunge_service.api.dependencies import Service
from expunge_service.audit.import_export import read_export
from expunge_service.audit.log import integrate
from expunge_service.audit.signed_note import Signer
from expunge_service.audit.verification import verify
from expunge_service.cli.commands import audit
from expunge_service.infra.tables import AuditEntry, DeletionRequest
from tests.harness.here import connect_here
from tests.service.worlds import live_model

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
Run = Callable[..., Any]


@pytest.fixture
def run(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command with --json; gives what it printed."""
    connect_here(monkeypatch, client, audit)

    def command(*arguments: str, typed: str | None = None) -> Any:
        result = CliRunner().invoke(app, arguments, input=typed, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout) if "--json" in arguments else result.output

    return command


def test_an_endpoint_is_added_listed_followed_and_disabled(run: Run, client: TestClient) -> None:
    made = run("webhooks", "add", "https://hooks.example.com/x", "--kind", "deletion_request.completed", "--json")
    assert made["secret"].startswith("whsec_") and made["public_key"].startswith("whpk_")
    client.post("/v1/deletion-requests", json={"subject_id": "nobody"}, headers={"Idempotency-Key": "1"})
    sent = run("webhooks", "list", made["id"], "--json")
    assert made["test"] in [each["id"] for each in sent] and len(sent) == 2
    run("webhooks", "remove", made["id"])
    (shown,) = run("webhooks", "list", "--json")
    assert shown["disabled_at"] is not None and shown["secret"] is None


def test_a_hold_is_placed_listed_and_released(run: Run) -> None:
    hold = run("holds", "place", "--subject", "ada", "--reason", "a lawsuit", "--json")
    run("holds", "lift", hold["id"])
    (shown,) = run("holds", "list", "--json")
    assert shown["id"] == hold["id"] and shown["lifted_at"] is not None


def test_a_model_shows_its_budget_and_who_serves_it(run: Run, service: Service, client: TestClient) -> None:
    live_model(service)
    shown = run("models", "show", "digits", "--json")
    assert shown["consumers"] == [] and shown["budget"]["model"] == "digits"
    assert [(each["kind"], each["used"]) for each in shown["budgets"]] == [("epsilon", 0)]
    said = " ".join(run("models", "show", "digits").split())
    assert "budgets.epsilon epsilon 0 of 1 spent" in said
    assert client.put("/v1/models/digits/consumers/web", json={"version": 1}).status_code == 200
    standing = {"name": "web", "version": 1, "status": "current"}
    assert run("models", "show", "digits", "--json")["consumers"] == [standing]
    assert ["web", "1", "current"] in [line.split() for line in run("models", "show", "digits").splitlines()]
    run("models", "remove-consumer", "digits", "web")
    assert run("models", "show", "digits", "--json")["consumers"] == []


def test_a_person_is_found_by_an_id_that_no_command_line_shows(run: Run, service: Service, client: TestClient) -> None:
    live_model(service)
    order = {"json": {"subject_id": "ada"}, "headers": {"Idempotency-Key": "1"}}
    request = client.post("/v1/deletion-requests", **order).json()["id"]  # type: ignore[arg-type]
    found = run("find", "--subject", "-", "--json", typed="ada\n")
    assert [each["id"] for each in found["requests"]] == [request]
    assert [(each["model"], each["state"]) for each in found["models"]] == [("digits", "holds")]
    shown = run("find", "--subject", "ada")
    assert request[:8] in shown and "digits" in shown
    assert "No model and no request" in run("find", "--subject", "nobody")


def test_a_person_is_deleted_from_every_model_unless_models_are_named(run: Run, service: Service) -> None:
    live_model(service, "digits", {"ada": ["a"], "ada-app": ["b"]})
    live_model(service, "faces", {"ada": ["c"]})
    everywhere = run("delete", "--subject", "ada", "--case", "C-1", "--json")
    assert [part["model"] for part in everywhere["models"]] == ["digits", "faces"]
    assert [each["id"] for each in run("requests", "list", "--case", "C-1", "--json")] == [everywhere["id"]]
    one = run("delete", "--subject", "ada", "--subject", "-", "--model", "faces", "--json", typed="ada-app\n")
    assert [part["model"] for part in one["models"]] == ["faces"] and one["remains_in"] == ["digits"]
    assert len(run("find", "--subject", "ada-app", "--json")["requests"]) == 1


def test_a_file_of_people_is_deleted_one_request_each(
    run: Run, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "BATCH", 2)
    live_model(service, "digits", {"ada": ["a"], "bob": ["b"]})
    (tmp_path / "people.csv").write_text('\ufeffsubject_id,case_id\nada,C-1\nbob,\n"carl, jr",C-3\n')
    file = (
        "delete",
        "--file",
        str(tmp_path / "people.csv"),
        "--case",
        "C-0",
        "--idempotency-key",
        "import-1",
        "--allow-no-match",
    )
    first = run(*file, "--json")
    assert [each["index"] for each in first] == [0, 1, 2]
    assert [each["request"]["case_id"] for each in first] == ["C-1", "C-0", "C-3"]
    assert [len(each["request"]["models"]) for each in first] == [1, 1, 0]
    assert run(*file, "--json") == first, "repeated under one key it is the same requests"
    assert not re.search(r"\bada\b", run(*file)), "ids stay in the file"
    openings = [each["request"]["opening"] for each in first]
    assert all(each in run(*file) for each in openings), "the table has them too: they are shown nowhere else"


def test_a_wrong_row_of_a_file_is_found_before_anything_is_sent(
    run: Run, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 3 was refused after rows 1 and 2 were accepted: their openings were lost, and they were sent once more."""
    monkeypatch.setattr(deletions, "BATCH", 2)
    people = tmp_path / "people.csv"
    for wrong in ("eve,no spaces,", "eve,,2999-01-01T00:00:00Z", "e\u200bve,,"):
        people.write_text(f"subject_id,case_id,received_at\nada,,\nbob,,\n{wrong}\n")
        refused = CliRunner().invoke(app, ["delete", "--file", str(people)])
        assert isinstance(refused.exception, CommandError) and "row 3" in refused.exception.what
        with service.database.read() as session:
            assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 0


def test_a_file_that_was_interrupted_is_sent_again_and_nobody_twice(
    run: Run, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call fails; the first one is printed, and neither the same nor a longer file asks twice."""
    monkeypatch.setattr(deletions, "BATCH", 2)
    people = tmp_path / "people.csv"
    people.write_text("subject_id\nada\nbob\neve\n")
    real, calls = Client.post, []

    def second_fails(self: Client, path: str, body: dict[str, Any], key: str | None = None) -> Any:
        calls.append(key)
        if len(calls) == 2:
            raise CommandError("The service does not answer.", "Is it running?", 3)
        return real(self, path, body, key)

    monkeypatch.setattr(Client, "post", second_fails)
    broken = CliRunner().invoke(app, ["delete", "--file", str(people), "--json"])
    assert isinstance(broken.exception, CommandError) and broken.exception.what.startswith("2 of 3 rows were sent")
    assert (broken.exception.code, "run the same command again" in broken.exception.hint) == (3, True)
    first = json.loads(broken.stdout)
    assert [each["index"] for each in first] == [0, 1] and all(each["request"]["opening"] for each in first)
    again = run("delete", "--file", str(people), "--allow-no-match", "--json")
    assert again[:2] == first and len(again) == 3
    people.write_text("subject_id\nada\nbob\neve\ndan\n")
    assert run("delete", "--file", str(people), "--allow-no-match", "--json")[:2] == first
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 5, "eve's call had another body"
    text = json.dumps({"requests": [{"subject_id": "ada"}, {"subject_id": "bob"}]}, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() not in calls, "the key gives nobody away"


PADDED = {f"{number:06d}": [f"s{number}"] for number in range(17, 60)}


def ended(*arguments: str) -> tuple[int, str, str]:
    """The exit status of a command, and what it printed to stdout and stderr."""
    result = CliRunner().invoke(app, arguments)
    error = result.exception
    if isinstance(error, CommandError):
        return error.code, result.stdout, f"{error.what} {error.hint}"
    assert error is None or isinstance(error, SystemExit), error
    return result.exit_code, result.stdout, result.stderr


def nobody_is_deleted(*arguments: str) -> str:
    """What ``delete`` says on stderr where no model holds data under the id."""
    status, _, said = ended("delete", *arguments)
    assert status == 5, said
    return said


@pytest.mark.usefixtures("run")
def test_a_deletion_of_nobody_exits_with_5_unless_that_is_allowed(service: Service, tmp_path: Path) -> None:
    live_model(service, people=PADDED)
    assert "No model holds data under this id" in nobody_is_deleted("--subject", "999999")
    assert "--allow-no-match" in nobody_is_deleted("--subject", "999999", "--json")
    assert "hold no data under this id" in nobody_is_deleted("--subject", "999999", "--model", "digits")
    assert ended("delete", "--subject", "999999", "--allow-no-match")[0] == 0
    assert ended("delete", "--subject", "000018")[0] == 0, "somebody is"
    people = tmp_path / "people.csv"
    people.write_text("subject_id\n000019\n999998\n999997\n")
    assert "rows 2, 3" in nobody_is_deleted("--file", str(people))
    assert ended("delete", "--file", str(people), "--allow-no-match")[0] == 0


@pytest.mark.usefixtures("run")
def test_a_deletion_that_waits_for_a_decision_about_the_id_exits_with_4(service: Service, tmp_path: Path) -> None:
    live_model(service, people=PADDED)
    for option in ((), ("--allow-no-match",)):
        status, shown, said = ended("delete", "--subject", "17", "--json", *option)
        assert (status, json.loads(shown)["reason"]) == (4, "near_miss") and "blocked" in said
    people = tmp_path / "people.csv"
    people.write_text("subject_id\n000019\n18\n999999\n")
    status, _, said = ended("delete", "--file", str(people))
    assert status == 4 and "row 2 wait" in said and "row 3" in said, said


def test_a_person_decides_that_an_id_is_another_spelling_or_another_person(run: Run, service: Service) -> None:
    live_model(service, people=PADDED)
    first, second = (json.loads(ended("delete", "--subject", text, "--json")[1])["id"] for text in ("17", "18"))
    status, _, said = ended("requests", "same-person", first, "--subject", "000018")
    assert status == 1 and "not written nearly" in said and "000018" not in said
    typed = run("requests", "same-person", first, "--subject", "-", "--json", typed="000017\n")
    assert (typed["status"], [part["model"] for part in typed["models"]]) == ("queued", ["digits"])
    other = run("requests", "other-person", second, "--json")
    assert (other["status"], other["reason"]) == ("completed", "no_match")
    for again in ("same-person", "other-person"):
        named = ("--subject", "000017") if again == "same-person" else ()
        status, _, said = ended("requests", again, first, *named)
        assert status == 1 and "does not wait" in said


@pytest.mark.usefixtures("run")
def test_a_file_of_decisions_is_carried_out_and_names_the_rows_that_were_refused(
    service: Service, tmp_path: Path
) -> None:
    live_model(service, people=PADDED)
    people, decisions = tmp_path / "people.csv", tmp_path / "decisions.csv"
    people.write_text("subject_id\n17\n18\n19\n20.0\n")
    status, shown, _ = ended("delete", "--file", str(people), "--json")
    requests = [each["request"]["id"] for each in json.loads(shown)]
    assert status == 4 and len(requests) == 4
    rows = zip(requests[:3], ("000017", "000021", "000019"), strict=True)
    decisions.write_text("request,subject_id\n" + "".join(f"{request},{right}\n" for request, right in rows))
    status, _, said = ended("requests", "same-person", "--file", str(decisions))
    assert status == 1 and "1 of 3 were refused, row 2" in said and "000021" not in said, said
    decisions.write_text("request\n" + requests[3] + "\n")
    assert ended("requests", "other-person", "--file", str(decisions))[0] == 0
    with service.database.read() as session:
        found = [session.get_one(DeletionRequest, request) for request in requests]
        assert [(each.status, each.reason) for each in found] == [
            ("queued", None),
            ("blocked", "near_miss"),
            ("queued", None),
            ("completed", "no_match"),
        ]


COLUMN = {f"{number:06d}": [f"s{number}"] for number in range(100, 160)} | {"AB-7": ["a"], "AB-07": ["b"]}


@pytest.mark.usefixtures("run")
def test_the_same_change_decides_about_a_spoiled_column_where_one_person_is_near(
    service: Service, tmp_path: Path
) -> None:
    """Sixty ids lost their zeros; the file that was sent says which, and the service knows who is near."""
    live_model(service, people=COLUMN)
    sent = tmp_path / "sent.csv"
    ids = [str(int(right)) for right in list(COLUMN)[:60]] + ["AB-007", "123456", "000159"]
    lines = "".join(f"{text},C-{row},2026-01-31T12:00:00Z\n" for row, text in enumerate(ids, 1))
    sent.write_text("subject_id,case_id,received_at\n" + lines)
    assert ended("delete", "--file", str(sent), "--json")[0] == 4
    before = statuses(service)
    assert before == {("blocked", "near_miss"): 61, ("completed", "no_match"): 1, ("queued", None): 1}

    def change(*words: str, answer: str) -> tuple[int, str]:
        arguments = ("requests", "same-person", "--file", str(sent), *words)
        result = CliRunner().invoke(app, arguments, input=answer)
        assert not any(f" {text} " in result.output for text in ids if len(text) > 3), "no id is printed"
        return getattr(result.exception, "code", result.exit_code), re.sub(r"\s+", " ", result.output)

    status, said = change("--change", "pad=6", answer="n\n")
    assert status == 2 and statuses(service) == before
    assert "Of the first 63 rows: 60 get the id of the only person near" in said, said
    assert "1 get an id that is not near, or that no model knows (row 61)" in said
    assert "2 do not wait for a decision (rows 62, 63)" in said
    status, said = change("--change", "pad=6", "--yes", answer="")
    assert status == 4, (said, "row 61 still waits")
    assert statuses(service) == {("blocked", "near_miss"): 1, ("completed", "no_match"): 1, ("queued", None): 61}
    status, said = change("--change", "pad=6", "--yes", answer="")
    assert status == 1 and "62 do not wait" in said, "once more changes nothing"
    with service.database.read() as session:
        named = session.scalars(select(AuditEntry.body).where(AuditEntry.kind == "people.searched"))
        assert [json.loads(body)["ids"] for body in named] == [20, 43] * 3


def statuses(service: Service) -> Counter[tuple[str, str | None]]:
    with service.database.read() as session:
        rows = session.execute(select(DeletionRequest.status, DeletionRequest.reason))
        return Counter((status, reason) for status, reason in rows)


@pytest.mark.usefixtures("run")
def test_a_change_that_makes_no_id_right_decides_nothing_and_tries_few(service: Service, tmp_path: Path) -> None:
    live_model(service, people=COLUMN)
    people, sent = tmp_path / "people.csv", tmp_path / "sent.csv"
    ids = [str(int(right)) for right in list(COLUMN)[:40]]
    people.write_text("subject_id\n" + "".join(f"{text}\n" for text in ids))
    requests = [each["request"]["id"] for each in json.loads(ended("delete", "--file", str(people), "--json")[1])]
    pairs = zip(requests, ids, strict=True)
    sent.write_text("request,subject_id\n" + "".join(f"{request},{text}\n" for request, text in pairs))
    status, _, said = ended("requests", "same-person", "--file", str(sent), "--change", "pad=5", "--yes")
    assert status == 1 and "makes no id right" in said
    assert statuses(service) == {("blocked", "near_miss"): 40}
    status, _, said = ended("requests", "same-person", "--file", str(sent), "--change", "pad", "--yes")
    assert status == 2 and "no change of an id" in said


@pytest.mark.usefixtures("run")
def test_a_changed_id_of_one_of_several_people_near_is_left_to_a_person(service: Service, tmp_path: Path) -> None:
    live_model(service, people=COLUMN)
    made = json.loads(ended("delete", "--subject", "AB-007", "--json")[1])["id"]
    sent = tmp_path / "sent.csv"
    sent.write_text(f"request,subject_id\n{made},AB-007\n")
    arguments = ("requests", "same-person", "--file", str(sent), "--change", "drop-prefix=AB-0", "--change")
    result = CliRunner().invoke(app, [*arguments, "prefix=AB-", "--yes"])
    assert "1 get the id of one of several people near" in result.output, result.output
    assert statuses(service) == {("blocked", "near_miss"): 1}


@pytest.mark.usefixtures("run")
def test_a_decision_names_a_request_or_a_file_of_the_right_columns(tmp_path: Path) -> None:
    decisions = tmp_path / "decisions.csv"
    for wrong in ("request\n", "request,subject\na,b\n", "request,subject_id\na,\n", "request,subject_id\na,b,c\n"):
        decisions.write_text(wrong)
        assert ended("requests", "same-person", "--file", str(decisions))[0] == 2
    file = ("--file", str(decisions))
    for step in (("same-person", "0" * 32), ("same-person", *file, "--subject", "a"), ("other-person",)):
        assert ended("requests", *step)[0] == 2
    assert ended("requests", "other-person", "0" * 32, *file)[0] == 2


@pytest.mark.parametrize("text", ["the court [/bold] said", "[red]no[/red]", "see :x: and [link=http://x]here", "[0]"])
def test_what_somebody_wrote_is_printed_as_it_is(
    run: Run, service: Service, client: TestClient, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``[/bold]`` in a hold's reason ended ``holds list`` in a traceback."""
    monkeypatch.setenv("EXPUNGE_DATABASE_URL", service.settings.database_url)
    hold = run("holds", "place", "--sample", "s", "--reason", text, "--json")["id"]
    client.post("/v1/keys", json={"label": text, "scopes": ["audit:read"]})
    shown = [run("holds", "list"), run("holds", "list", hold), run("keys", "list")]
    assert all(text in re.sub(r"\s+", " ", each) for each in shown)


def test_the_log_says_who_did_it_and_an_export_holds_no_name(
    run: Run, service: Service, client: TestClient, tmp_path: Path
) -> None:
    client.post("/v1/keys", json={"label": "Grace", "scopes": ["audit:read"]})
    actor = client.get("/v1/actors").json()["data"][0]
    assert actor["name"] == "test"
    with service.database.write() as session:
        integrate(session, Signer.of(service.settings))
    assert [each["actor_name"] for each in run("audit", "list", "--json")] == [None, "test"]
    assert "test" in run("audit", "list")
    assert run("audit", "list", "--csv").splitlines()[0] == "index,at,kind,who,request_id"
    run("audit", "export", str(tmp_path / "log.jsonl"))
    exported = (tmp_path / "log.jsonl").read_text()
    assert actor["id"] in exported and "actor_name" not in exported and "Grace" not in exported
    head, lines = read_export(tmp_path / "log.jsonl")
    assert verify(lines, head, Signer.of(service.settings).verifier).size == 2


def test_an_unverified_request_is_verified_or_rejected(run: Run, service: Service) -> None:
    live_model(service)
    ask = ("delete", "--model", "digits", "--no-verified", "--json", "--subject")
    one, two = (run(*ask, person)["id"] for person in ("ada", "bob"))
    assert run("requests", "verify", one, "--json")["status"] == "queued"
    assert run("requests", "reject", two, "--reason", "not them", "--json")["rejection"] == "not them"
    assert {each["status"] for each in run("requests", "list", "--json")} == {"queued", "rejected"}


def test_a_model_is_registered_with_its_methods_options(run: Run) -> None:
    named = ("--recipe", "digits", "--method", "recollection", "--no-wait", "--json")
    made = run("models", "add", "m", *named, "--option", "repair_epochs=2")
    assert made["policy"]["options"] == {"repair_epochs": 2}
    plain = run("models", "add", "n", *named)
    assert plain["policy"]["options"] == {}
    assert run("models", "show", "m", "--json")["preparation"]["work_units"] is None
