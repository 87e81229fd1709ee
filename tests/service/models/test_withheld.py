"""A withheld first version, as callers and the terminal see it: two steps out, and an act that takes effect once."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge.service.api.dependencies import Service
from expunge.service.infra.tables import Generation, Model
from expunge.service.models import ACCEPTED, WITHHELD, is_withheld
from expunge_client.cli.commands import models
from expunge_client.cli.output import CommandError

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


def test_what_does_not_wait_is_refused(client: TestClient) -> None:
    assert client.post("/v1/models/m/publish").status_code == 404
    assert client.post("/v1/models", json=MODEL).status_code < 300
    refused = client.post("/v1/models/m/publish")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_withheld")


def test_the_terminal_ends_its_wait_with_the_two_commands() -> None:
    class Told:
        def get(self, path: str) -> dict[str, object]:
            assert path == "/v1/models/m"
            report = {"plain_accuracy": 0.9, "accuracy": 0.3}
            preparation = {"progress": 0.0, "phase": None, "work_units": None, "report": report}
            return {"status": "preparing", "reason": WITHHELD, "preparation": preparation}

    with pytest.raises(CommandError) as raised:
        models.await_prepared(Told(), "m")  # type: ignore[arg-type]
    assert str(raised.value).endswith("Plain 0.900, to publish 0.300.")
    assert "expunge models publish m" in str(raised.value.hint) and "expunge models retire m" in str(raised.value.hint)
