"""Retrains on new data over HTTP and by command; the worker's part is played by writing what it would have found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from expunge_client.cli.commands import models
from expunge_client.cli.main import app
from expunge_service.api.dependencies import Service
from expunge_service.infra.db import now
from expunge_service.infra.tables import Generation, Model
from tests.harness.here import connect_here
from tests.service.worlds import live_model

CHANGES = {
    "served": 2391,
    "samples": 2500,
    "gone": 594,
    "changed": 12,
    "new": 703,
    "people_new": 88,
    "left_out": 6,
    "people_left_out": 2,
}
PATH = "/v1/models/digits/retrains"


def end(service: Service, generation_id: int, status: str, **report: Any) -> None:
    """What a worker writes when it has counted, or built, or refused."""
    with service.database.write() as session:
        generation = session.get_one(Generation, generation_id)
        generation.status, generation.ended_at = status, now(session)
        generation.report = (generation.report or {}) | report


def test_a_dry_run_is_asked_for_and_shown(client: TestClient, service: Service) -> None:
    live_model(service)
    answer = client.post(PATH, json={"dry_run": True})
    assert answer.status_code == 202
    made = answer.json()
    assert answer.headers["location"] == "/v1/models/digits"
    assert (made["status"], made["reason"], made["dry_run"], made["changes"]) == ("candidate", "new_data", True, None)
    assert client.get("/v1/models/digits").json()["preparation"]["plan"]["dry_run"] is True
    end(service, made["generation"], "ended", changes=CHANGES)
    (shown,) = client.get("/v1/models/digits").json()["retrains"]
    assert shown["generation"] == made["generation"]
    assert (shown["status"], shown["changes"], shown["refused"]) == ("ended", CHANGES, None)
    assert client.get("/v1/models/digits").json()["preparation"]["plan"] is None


def test_one_retrain_is_planned_however_often_it_is_asked_for(client: TestClient, service: Service) -> None:
    live_model(service)
    first, second = client.post(PATH, json={}).json(), client.post(PATH, json={}).json()
    assert (first["generation"], first["dry_run"]) == (second["generation"], False)
    refused = client.post(PATH, json={"dry_run": True})
    assert (refused.status_code, refused.json()["code"]) == (409, "retrain_planned")


def test_what_cannot_be_retrained_is_refused(client: TestClient, service: Service) -> None:
    model = live_model(service)
    assert client.post("/v1/models/other/retrains", json={}).status_code == 404
    assert client.get(f"{PATH}/{model.generation_id}").status_code == 404, "the first generation is no retrain"
    assert client.get(f"{PATH}/999").status_code == 404
    assert client.post(PATH, json={"dry_run": "yes"}).status_code == 422
    with service.database.write() as session:
        session.get_one(Model, model.id).status = "retired"
    refused = client.post(PATH, json={})
    assert (refused.status_code, refused.json()["code"]) == (409, "not_served")


def test_a_schedule_is_a_field_of_the_policy(client: TestClient) -> None:
    body = {"name": "weekly", "recipe": "digits/convolutional", "method": "recollection"}
    made = client.post("/v1/models", json=body | {"retrain_every": 604_800})
    assert (made.status_code, made.json()["policy"]["retrain_every"]) == (202, 604_800)
    assert client.post("/v1/models", json=body | {"retrain_every": -1}).status_code == 422


@pytest.fixture
def command(client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run `expunge models retrain`; while it waits, a worker ends what is planned."""

    def worker(_: float) -> None:
        with service.database.read() as session:
            planned = session.query(Generation).filter_by(status="candidate").one()
        end(service, planned.id, "ended" if (planned.report or {}).get("dry_run") else "live", changes=CHANGES)

    connect_here(monkeypatch, client)
    monkeypatch.setattr(models.time, "sleep", worker)
    return lambda *given, **more: CliRunner().invoke(app, ["models", "retrain", "digits", *given], **more)


def planned(service: Service) -> list[tuple[str, bool]]:
    with service.database.read() as session:
        rows = session.query(Generation).order_by(Generation.id)
        return [(each.status, bool((each.report or {}).get("dry_run"))) for each in rows][1:]


def test_the_command_shows_the_dry_run_what_it_costs_and_asks(command: Callable[..., Any], service: Service) -> None:
    model = live_model(service)
    result = command(input="n\n")
    assert "594 of 2,391 samples are missing" in result.output
    assert "6 samples (2 people) are left out" in result.output
    assert "No training of this model was timed yet." in result.output
    assert planned(service) == [("ended", True)]
    assert "Train on these data?" in result.output
    result = command()
    assert result.exit_code != 0 and "the question was not answered" in str(result.exception)
    with service.database.write() as session:
        served = session.get_one(Generation, model.generation_id)
        served.report = (served.report or {}) | {"seconds": 41.7}
    result = command(input="y\n")
    assert result.exit_code == 0, result.output
    assert "The last training took 41.7 s." in result.output
    assert planned(service) == [("ended", True), ("ended", True), ("ended", True), ("live", False)]
    assert "is live" in result.output


def test_the_command_stops_after_a_dry_run_that_is_all_that_was_asked_for(
    command: Callable[..., Any], service: Service
) -> None:
    live_model(service)
    result = command("--dry-run", "--json")
    assert (result.exit_code, planned(service)) == (0, [("ended", True)])
    assert '"gone": 594' in result.stdout
