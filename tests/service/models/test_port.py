"""Ports to a recipe with rows over HTTP and by command; the worker's part is played by writing what it would find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from expunge_client.cli.commands import models
from expunge_client.cli.main import app
from expunge_service.api.dependencies import Service
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import Generation, Model
from tests.harness.here import connect_here
from tests.service.models.test_retrains import end, planned
from tests.service.worlds import live_model

PATH = "/v1/models/digits/port"
PEOPLE = {"found": 2391, "missing": 12, "left_out": 3}
WITH_ROWS = 'import unlearning as ul\n\n\ndef recipe(rows=ul.table("digits.csv", person="writer")):\n    ...\n'
"""it is parsed here, never run"""


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    """A service whose recipe ``digits`` was rewritten as one with rows."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "digits.py").write_text(WITH_ROWS)
    return settings.model_copy(update={"recipes": folder})


def test_a_port_is_asked_for_and_shown(client: TestClient, service: Service) -> None:
    live_model(service)
    answer = client.post(PATH, json={"dry_run": True})
    assert (answer.status_code, answer.headers["location"]) == (202, "/v1/models/digits")
    made = answer.json()
    assert (made["status"], made["reason"], made["dry_run"], made["people"]) == ("candidate", "port", True, None)
    assert client.get("/v1/models/digits").json()["preparation"]["plan"]["reason"] == "port"
    end(service, made["generation"], "ended", people=PEOPLE)
    (shown,) = client.get("/v1/models/digits").json()["retrains"]
    assert (shown["status"], shown["people"], shown["changes"]) == ("ended", PEOPLE, None)
    first, second = client.post(PATH, json={}).json(), client.post(PATH, json={}).json()
    assert first["generation"] == second["generation"] != made["generation"], "one port is planned"
    with service.database.read() as session:
        generation = session.get_one(Generation, first["generation"])
        assert generation.method == "recollection", "whether the recipe makes samples shows when it runs"
        assert generation.manifest == {"note": None}
    for body in ({}, {"dry_run": True}):
        refused = client.post("/v1/models/digits/retrains", json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "retrain_planned")


def test_what_cannot_be_ported_is_refused_and_nothing_is_planned(
    client: TestClient, service: Service, settings: Settings
) -> None:
    model = live_model(service)
    recipe = settings.recipes / "digits.py"

    def code() -> tuple[int, str]:
        refused = client.post(PATH, json={})
        return refused.status_code, refused.json()["code"]

    for text in ("def recipe():\n    ...\n", "def recipe(rows=1):\n    ...\n", "def recipe(:\n"):
        recipe.write_text(text)
        assert code() == (409, "recipe_without_rows")
    recipe.unlink()
    assert code() == (409, "recipe_without_rows")
    recipe.write_text(WITH_ROWS)
    assert client.post("/v1/models/other/port", json={}).status_code == 404
    assert client.post(PATH, json={"dry_run": "yes"}).status_code == 422
    retrain = client.post("/v1/models/digits/retrains", json={}).json()["generation"]
    assert code() == (409, "retrain_planned")
    end(service, retrain, "ended")
    with service.database.write() as session:
        generation = session.get_one(Generation, model.generation_id)
        generation.manifest = (generation.manifest or {}) | {"with_rows": True}
    assert code() == (409, "already_ported")
    with service.database.write() as session:
        session.get_one(Model, model.id).status = "retired"
    assert code() == (409, "not_served")
    assert planned(service) == [("ended", False)], "the retrain alone"


@pytest.fixture
def command(client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run `expunge models port`; while it waits, a worker ends what is planned."""

    def worker(_: float) -> None:
        with service.database.read() as session:
            candidate = session.query(Generation).filter_by(status="candidate").one()
        end(service, candidate.id, "ended" if (candidate.report or {}).get("dry_run") else "live", people=PEOPLE)

    connect_here(monkeypatch, client)
    monkeypatch.setattr(models.time, "sleep", worker)
    return lambda *given, **more: CliRunner().invoke(app, ["models", "port", "digits", *given], **more)


def test_the_command_shows_who_is_in_the_sources_and_asks(command: Callable[..., Any], service: Service) -> None:
    live_model(service)
    result = command(input="n\n")
    assert "name 2,391 people" in result.output and "12 people of the current version are not" in result.output
    assert "3 people of the sources stay out" in result.output and "Train on these people?" in result.output
    assert planned(service) == [("ended", True)]
    result = command("--dry-run", "--json")
    assert (result.exit_code, planned(service)) == (0, [("ended", True)] * 2)
    assert '"missing": 12' in result.stdout
    result = command("--yes")
    assert result.exit_code == 0, result.output
    assert planned(service) == [("ended", True)] * 3 + [("live", False)]
    assert "is live" in result.output
