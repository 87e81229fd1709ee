"""The peer that Expunge is measured beside does what a deletion service must do, or it would win by doing less."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas
import pytest
from fastapi.testclient import TestClient
from safetensors.numpy import save
from sklearn.linear_model import LogisticRegression
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from benchmarks.people_table import write_people
from tests.harness.servers import Postgres

PEOPLE = 40
DIES_IN_TRAINING = (
    "import os; from benchmarks import peer; peer.train = lambda gone: os.kill(os.getpid(), 9); peer.forget()"
)
NO_BROKER = "redis://127.0.0.1:1/0"
KEY = {"Authorization": "Bearer secret"}


@pytest.fixture
def peer(tmp_path: Path, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The peer, set up over PostgreSQL. Each of its messages is lost, so a test calls ``forget`` as the sweep does."""
    write_people(tmp_path, PEOPLE)
    with postgres_server.database() as url:
        settings = {"FOLDER": str(tmp_path), "DATABASE_URL": url, "BROKER_URL": NO_BROKER, "KEY": "secret"}
        for name, value in settings.items():
            monkeypatch.setenv(f"PEER_{name}", value)
        monkeypatch.delitem(sys.modules, "benchmarks.peer", raising=False)
        module = importlib.import_module("benchmarks.peer")
        module.set_up()
        yield module
        module.database.dispose()


@pytest.fixture
def api(peer: ModuleType) -> TestClient:
    return TestClient(peer.api)


def post(api: TestClient, person: str, key: str = "first") -> Any:
    return api.post("/deletions", json={"subject_id": person}, headers=KEY | {"Idempotency-Key": key})


def published(peer: ModuleType) -> Any:
    with Session(peer.database) as session:
        return session.get_one(peer.Model, peer.MODEL)


def weights_without(peer: ModuleType, *people: str) -> bytes:
    table = pandas.read_parquet(peer.FOLDER / "people.parquet")
    left = table[~table.person.isin(people)]
    assert len(left) == 10 * (PEOPLE - len(people))
    fitted = LogisticRegression(max_iter=1000).fit(left[peer.FEATURES].to_numpy(), left.y.to_numpy())
    return save({"coef": fitted.coef_, "intercept": fitted.intercept_})


def test_a_deletion_publishes_a_fit_without_the_person_and_keeps_no_other(peer: ModuleType, api: TestClient) -> None:
    request = post(api, "p3").json()
    assert request["status"] == "queued" and published(peer).version == 1
    peer.forget()
    completed = api.get(f"/deletions/{request['id']}", headers=KEY).json()
    assert (completed["status"], completed["version"]) == ("completed", 2) and completed["completed_at"]
    weights = weights_without(peer, "p3")
    [checkpoint] = peer.CHECKPOINTS.iterdir()
    assert checkpoint.read_bytes() == weights and checkpoint.name == sha256(weights).hexdigest()
    assert published(peer).sha256 == checkpoint.name
    with Session(peer.database) as session:
        events = session.scalars(select(peer.AuditRow.event).order_by(peer.AuditRow.id)).all()
    assert events == ["received", "published", "completed"]


def test_all_that_wait_share_one_training_and_those_before_stay_out(peer: ModuleType, api: TestClient) -> None:
    post(api, "p1", "a")
    peer.forget()
    post(api, "p2", "b"), post(api, "p3", "c")
    peer.forget()
    peer.forget()  # nothing waits
    assert published(peer).version == 3
    assert published(peer).sha256 == sha256(weights_without(peer, "p1", "p2", "p3")).hexdigest()


def test_a_repeated_key_gets_the_first_answer_and_another_order_under_it_none(
    peer: ModuleType, api: TestClient
) -> None:
    first, again = post(api, "p3"), post(api, "p3")
    assert (first.status_code, again.status_code) == (202, 202) and first.json() == again.json()
    assert post(api, "p4").status_code == 422
    with Session(peer.database) as session:
        assert session.scalar(select(func.count()).select_from(peer.Request)) == 1


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer secreu"}, {"Authorization": "Bearer "}])
def test_without_the_key_nothing_is_taken_or_told(peer: ModuleType, api: TestClient, headers: dict[str, str]) -> None:
    known = post(api, "p3").json()["id"]
    assert api.get(f"/deletions/{known}", headers=headers).status_code == 401
    order = api.post("/deletions", json={"subject_id": "p4"}, headers=headers | {"Idempotency-Key": "second"})
    assert order.status_code == 401
    assert api.get("/deletions/unknown", headers=KEY).status_code == 404


def test_a_request_whose_worker_dies_between_claim_and_commit_is_done_by_the_next(
    peer: ModuleType, api: TestClient
) -> None:
    request = post(api, "p3").json()
    died = subprocess.run([sys.executable, "-c", DIES_IN_TRAINING], env=os.environ, cwd=Path(__file__).parents[2])
    assert died.returncode == -9
    assert api.get(f"/deletions/{request['id']}", headers=KEY).json()["status"] == "queued"
    peer.forget()
    assert api.get(f"/deletions/{request['id']}", headers=KEY).json()["status"] == "completed"
    assert published(peer).sha256 == sha256(weights_without(peer, "p3")).hexdigest()
