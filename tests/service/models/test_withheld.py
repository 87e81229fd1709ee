"""A withheld first version, as callers and the terminal see it: two steps out, and an act that takes effect once."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from click.testing import Result
from fastapi.testclient import TestClient
from sqlalchemy import select
from typer.testing import CliRunner

from expunge_client.cli.commands import models
from expunge_client.cli.main import app
from expunge_client.cli.output import CommandError
from expunge_service.api.dependencies import Service
from expunge_service.infra.tables import Generation, Model
from expunge_service.models import ACCEPTED, WITHHELD, is_withheld
from tests.harness.ways_out import run

MODEL = {"name": "m", "recipe": "digits", "method": "retrain"}


@pytest.fixture
def withheld(client: TestClient, service: Service) -> TestClient:
    assert client.post("/v1/models", json=MODEL).status_code < 300
    with service.database.write() as session:
        session.scalars(select(Model).where(Model.name == "m")).one().reason = WITHHELD
    return client


def accepted(service: Service) -> bool:
    with service.database.read() as session:
        model = session.scalars(select(Model).where(Model.name == "m")).one()
        generation = session.get_one(Generation, model.generation_id)
        return not is_withheld(model) and bool((generation.manifest or {}).get(ACCEPTED))


def test_it_says_why_and_offers_two_steps(withheld: TestClient) -> None:
    shown = withheld.get("/v1/models/m").json()
    assert shown["status"] == "preparing"
    assert shown["reason"].startswith("accuracy_drop: On the holdout the version to publish is worse")
    assert [(each["verb"], each["path"]) for each in shown["actions"]] == [
        ("publish", "/v1/models/m/publish"),
        ("retire", "/v1/models/m/retire"),
    ]


def test_published_anyway_it_is_prepared_again_and_asked_twice_changes_nothing(
    withheld: TestClient, service: Service
) -> None:
    stale = {"If-Match": '"another"'}
    assert withheld.post("/v1/models/m/publish", headers=stale).status_code == 412 and not accepted(service)
    first = withheld.post("/v1/models/m/publish")
    assert (first.status_code, first.json()["status"], first.json()["reason"]) == (200, "preparing", None)
    assert accepted(service)
    assert withheld.post("/v1/models/m/publish").json() == first.json()


def test_the_command_of_the_step_makes_the_same_call(
    withheld: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = withheld.get("/v1/models/m").json()["actions"][0]
    assert step["command"] == "expunge models retrain m"
    done = run(withheld, monkeypatch, *step["command"].split()[1:], "--no-wait")
    assert done.exit_code == 0 and accepted(service), done.output


def test_what_does_not_wait_is_refused(client: TestClient) -> None:
    assert client.post("/v1/models/m/publish").status_code == 404
    assert client.post("/v1/models", json=MODEL).status_code < 300
    refused = client.post("/v1/models/m/publish")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_withheld")


class Told:
    """A service with one model in preparation; it is live as soon as its publication is asked for."""

    def __init__(self) -> None:
        self.posted: list[str] = []

    def get(self, path: str) -> dict[str, object]:
        assert path == "/v1/models/m"
        report = {"plain_accuracy": 0.9, "accuracy": 0.3}
        preparation = {"progress": 0.0, "phase": None, "work_units": None, "report": report}
        status, reason = ("live", None) if "/v1/models/m/publish" in self.posted else ("preparing", WITHHELD)
        return {"name": "m", "status": status, "reason": reason, "preparation": preparation}

    def look(self, path: str) -> tuple[dict[str, object], float]:
        return self.get(path), 0.0

    def post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        self.posted.append(path)
        return {}


def answered(monkeypatch: pytest.MonkeyPatch, answer: str, *command: str) -> tuple[Told, Result]:
    told = Told()
    monkeypatch.setattr(models, "connect", lambda: nullcontext(told))
    return told, CliRunner().invoke(app, command, input=answer)


ADD = ("models", "add", "m", "--recipe", "digits")


@pytest.mark.parametrize("words", [ADD, ("models", "retrain", "m")])
def test_the_terminal_shows_both_figures_and_asks(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    publish, registered = ["/v1/models/m/publish"], ["/v1/models"] if words == ADD else []
    for answer, posted in (("y\n", publish), ("n\n", []), ("", [])):
        told, result = answered(monkeypatch, answer, *words)
        assert "Plain accuracy 0.900, to publish 0.300." in result.output
        assert "publish it at any accuracy?" in result.output
        assert [path for path in told.posted if path != "/v1/models"] == posted
        assert told.posted == registered + posted
        if not posted:
            assert isinstance(result.exception, CommandError)
            hint = str(result.exception.hint)
            assert "expunge models retrain m" in hint and "expunge models retire m" in hint


def test_with_yes_it_is_not_asked_and_a_dry_run_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told, result = answered(monkeypatch, "", "models", "retrain", "m", "--yes", "--no-wait")
    assert (result.exit_code, told.posted) == (0, ["/v1/models/m/publish"]), result.output
    told, _ = answered(monkeypatch, "", "models", "retrain", "m", "--dry-run")
    assert told.posted == ["/v1/models/m/retrains"], "the service refuses it"
