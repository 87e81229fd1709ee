"""Models, versions, checkpoints and budgets over HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.api.dependencies import Service
from expunge_service.audit.log import charge
from expunge_service.infra.db import now
from expunge_service.infra.stores import Store, folder_at
from expunge_service.infra.tables import AuditEntry, Generation, Model
from expunge_service.models.figures import FIGURES
from expunge_service.models.registration import register
from tests.harness.files import path_in
from tests.harness.servers import free_port
from tests.service.worlds import live_model, publish
from unlearning.accounting.policy import Policy

Keys = Callable[..., dict[str, str]]
BODY = {"name": "digits", "recipe": "digits/convolutional", "method": "recollection"}


def test_a_registered_model_is_preparing_and_waits_for_a_worker(client: TestClient, service: Service) -> None:
    answer = client.post("/v1/models", json=BODY | {"epsilon": 4, "delta": 1e-5, "options": {"rank": 64}})
    assert answer.status_code == 202
    assert answer.headers["location"] == "/v1/models/digits"
    body = answer.json()
    assert (body["status"], body["current"], body["guarantee"]) == ("preparing", None, None)
    assert (body["policy"]["epsilon"], body["policy"]["options"]) == (4, {"rank": 64})
    progress = client.get("/v1/models/digits")
    assert progress.json() == body | {"preparation": progress.json()["preparation"]}
    assert (progress.json()["status"], progress.json()["preparation"]["progress"]) == ("preparing", 0)
    assert progress.headers["retry-after"]
    with service.database.read() as session:
        model, generation = session.scalars(select(Model)).one(), session.scalars(select(Generation)).one()
        assert model.generation_id == generation.id
        assert (generation.status, generation.budget, generation.budget_cost) == ("preparing", None, 0)
        assert session.scalars(select(AuditEntry.kind).where(AuditEntry.model_id == model.id)).all() == [
            "model.registered"
        ]


def test_an_option_may_be_a_list_of_numbers(client: TestClient) -> None:
    options = {"early_share": [0.4, 0.7], "phase_shares": [0.6, 0.2, 0.2]}
    answer = client.post("/v1/models", json=BODY | {"method": "late", "options": options})
    assert answer.status_code == 202
    assert answer.json()["policy"]["options"] == options


def test_a_planned_retrain_is_shown_with_who_waits_and_when_it_should_end(client: TestClient, service: Service) -> None:
    model = live_model(service)
    assert client.get("/v1/models/digits").json()["preparation"]["plan"] is None
    with service.database.write() as session:
        session.get_one(Model, model.id).status = "exhausted"
        candidate = Generation(
            tenant_id="default",
            model_id=model.id,
            status="candidate",
            method="recollection",
            guarantee="none",
            progress=0.5,
            attempts=1,
            phase="train",
            report={"reason": "budget_exhausted", "eta_seconds": 600.0},
            created_at=now(session),
        )
        session.add(candidate)
    for person in ("ada", "bob"):
        headers = {"Idempotency-Key": person}
        assert client.post("/v1/deletion-requests", json={"subject_id": person}, headers=headers).status_code == 202
    answer = client.get("/v1/models/digits")
    plan = answer.json()["preparation"]["plan"]
    assert {name: plan[name] for name in ("reason", "waiting", "attempt", "phase", "progress", "generation")} == {
        "reason": "budget_exhausted",
        "waiting": 2,
        "attempt": 1,
        "phase": "train",
        "progress": 0.5,
        "generation": candidate.id,
    }
    planned, eta = (datetime.fromisoformat(plan[name]) for name in ("planned_at", "eta"))
    assert timedelta(seconds=299) < eta - planned < timedelta(seconds=360)
    assert answer.headers["retry-after"]


@pytest.mark.both_engines
def test_a_name_is_taken_once_for_each_tenant(client: TestClient, service: Service) -> None:
    assert client.post("/v1/models", json=BODY).status_code == 202
    answer = client.post("/v1/models", json=BODY)
    assert (answer.status_code, answer.json()["code"]) == (409, "model_exists")
    with service.database.write() as session:
        policy = Policy.from_json({"method": "recollection"})
        assert register(session, "other", BODY["name"], BODY["recipe"], policy).name == BODY["name"]


UNUSABLE: tuple[tuple[dict[str, Any], str], ...] = (
    ({"name": "Digits"}, "/name"),
    ({"name": "../digits"}, "/name"),
    ({"name": "x" * 64}, "/name"),
    ({"recipe": "/etc/passwd"}, "/recipe"),
    ({"recipe": "../secret"}, "/recipe"),
    ({"recipe": "digits.py"}, "/recipe"),
    ({"method": "magic_canary"}, "/method"),
    ({"fallback": "recollection"}, "/fallback"),
    ({"calibration": {"alpha": 2}}, "/calibration/alpha"),
    ({"calibration": {"orders": 0}}, "/calibration/orders"),
    ({"calibration": {"sizes": [2, 1]}}, "/calibration/sizes"),
    ({"calibration": {"power": 1}}, "/calibration"),
    ({"fallback": "rewind"}, "/fallback"),
    ({"fallback": "nothing"}, "/fallback"),
    ({"epsilon": -1}, "/epsilon"),
    ({"epsilon": "4"}, "/epsilon"),
    ({"epsilon": True}, "/epsilon"),
    ({"delta": 1}, "/delta"),
    ({"delta": 1e-13}, "/delta"),
    ({"noise_std": 1e-6}, "/noise_std"),
    ({"noise_std": 1e-9}, ""),
    ({"granularity": "canary"}, "/granularity"),
    ({"options": {"x": {"deep": 1}}}, "/options"),
    ({"options": {"Canary!": 1}}, "/options"),
    ({"code": "print('canary')"}, ""),
)
"""a change of a registration, and the field that the refusal points to"""


def test_a_policy_that_cannot_be_used_names_the_field_and_not_the_value(client: TestClient, service: Service) -> None:
    for change, pointer in UNUSABLE:
        answer = client.post("/v1/models", json=BODY | change)
        assert answer.status_code == 422, change
        assert answer.json()["errors"][0]["pointer"].startswith(pointer), change
        assert "canary" not in answer.text.lower(), change
    with service.database.read() as session:
        assert session.scalars(select(Model)).all() == []


@pytest.mark.both_engines
def test_models_are_listed_by_name_page_by_page(client: TestClient, service: Service) -> None:
    for name in ("c", "a", "b"):
        live_model(service, name)
    first = client.get("/v1/models", params={"limit": 2}).json()
    second = client.get("/v1/models", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [each["name"] for each in first["data"] + second["data"]] == ["a", "b", "c"]
    assert (first["has_more"], second["has_more"], second["next_cursor"]) == (True, False, None)
    assert {each["guarantee"] for each in first["data"]} == {"proved"}


def test_a_version_shows_its_parent_and_what_it_carried_out(client: TestClient, service: Service) -> None:
    model = live_model(service)
    publish(service, model, b"version two", samples=2, people=1)
    versions = client.get("/v1/models/digits/versions").json()["data"]
    assert [(each["number"], each["parent"], each["status"]) for each in versions] == [
        (2, 1, "current"),
        (1, None, "retired"),
    ]
    head = client.get("/v1/models/digits/versions/current").json()
    assert head == client.get("/v1/models/digits/versions/2").json() == versions[0]
    assert head["checkpoint_sha256"] == hashlib.sha256(b"version two").hexdigest()
    assert (head["samples"], head["people"], head["requests"]) == (2, 1, [])
    first = client.get("/v1/models/digits/versions", params={"limit": 1}).json()
    assert (
        client.get("/v1/models/digits/versions", params={"cursor": first["next_cursor"]}).json()["data"] == versions[1:]
    )


@pytest.mark.parametrize(
    "path",
    ["nope", "nope/versions", "nope/versions/current", "nope/budget", "nope/versions/1/checkpoint"],
)
def test_what_belongs_to_no_model_is_not_found(client: TestClient, path: str) -> None:
    answer = client.get(f"/v1/models/{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")


def test_a_version_that_is_not_there_is_not_found(client: TestClient, service: Service) -> None:
    live_model(service)
    for path in ("7", "7/checkpoint", "999999999999999999"):
        assert client.get(f"/v1/models/digits/versions/{path}").status_code == 404
    client.post("/v1/models", json=BODY | {"name": "new"})
    assert client.get("/v1/models/new/versions/current").status_code == 404
    for number in ("0", "-1", "latest", "1e3", "9" * 19):
        assert client.get(f"/v1/models/digits/versions/{number}").status_code == 422


PATH = "/v1/models/digits/versions/current/checkpoint"
CONTENT = bytes(range(256)) * 20


@pytest.fixture
def checkpoint(client: TestClient, service: Service) -> str:
    """A head of 5,120 bytes; its ETag."""
    publish(service, live_model(service), CONTENT)
    return f'"{hashlib.sha256(CONTENT).hexdigest()}"'


def test_a_checkpoint_is_its_bytes_under_its_digest(client: TestClient, checkpoint: str) -> None:
    answer = client.get(PATH)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["etag"] == checkpoint
    assert answer.headers["content-length"] == str(len(CONTENT))
    head = client.head(PATH)
    assert (head.status_code, head.content) == (200, b"")
    same = ("etag", "content-length", "accept-ranges", "content-type", "repr-digest")
    assert {name: head.headers[name] for name in same} == {name: answer.headers[name] for name in same}


@pytest.mark.parametrize(
    ("suffix", "media_type"),
    [
        ("lightgbm.txt", "text/plain; charset=utf-8"),
        ("xgboost.json", "application/json"),
        ("trees.npy", "application/octet-stream"),
        ("zip", "application/zip"),
    ],
)
def test_a_librarys_own_file_keeps_its_suffix_and_media_type(
    client: TestClient, service: Service, checkpoint: str, suffix: str, media_type: str
) -> None:
    with service.database.write() as session:
        for generation in session.scalars(select(Generation)):
            generation.manifest = {**(generation.manifest or {}), "suffix": suffix}
    answer = client.get(PATH)
    name = f"{checkpoint.strip(chr(34))}.{suffix}"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert answer.headers["content-type"] == media_type == client.head(PATH).headers["content-type"]
    assert client.get(PATH.removesuffix("/checkpoint")).json()["checkpoint_suffix"] == suffix


@pytest.mark.parametrize("condition", ["{etag}", "W/{etag}", '"other", {etag}', "*"])
def test_a_checkpoint_the_client_has_is_not_sent_again(client: TestClient, checkpoint: str, condition: str) -> None:
    for method in ("GET", "HEAD"):
        answer = client.request(method, PATH, headers={"If-None-Match": condition.format(etag=checkpoint)})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", checkpoint)
    assert client.get(PATH, headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    ("asked", "status", "content"),
    [
        ("bytes=0-0", 206, CONTENT[:1]),
        ("bytes=10-99", 206, CONTENT[10:100]),
        ("bytes=5000-", 206, CONTENT[5000:]),
        ("bytes=-20", 206, CONTENT[-20:]),
        ("bytes=-99999", 206, CONTENT),
        ("bytes=5119-99999", 206, CONTENT[5119:]),
        ("bytes=5120-", 416, None),
        ("bytes=-0", 416, None),
        ("bytes=9-2", 200, CONTENT),
        ("bytes=-", 200, CONTENT),
        ("bytes=0-1,5-6", 200, CONTENT),
        ("lines=0-1", 200, CONTENT),
        ("bytes=" + "9" * 30 + "-", 200, CONTENT),
    ],
)
def test_ranges(client: TestClient, checkpoint: str, asked: str, status: int, content: bytes | None) -> None:
    answer = client.get(PATH, headers={"Range": asked})
    assert answer.status_code == status
    if content is None:
        assert answer.headers["content-range"] == f"bytes */{len(CONTENT)}"
        return
    assert answer.content == content
    if status == 206:
        start = CONTENT.index(content) if len(content) > 256 else int(answer.headers["content-range"][6:].split("-")[0])
        assert answer.headers["content-range"] == f"bytes {start}-{start + len(content) - 1}/{len(CONTENT)}"


def test_a_range_of_an_old_file_gets_the_whole_new_one(client: TestClient, checkpoint: str) -> None:
    assert client.get(PATH, headers={"Range": "bytes=0-9", "If-Range": '"old"'}).content == CONTENT
    assert client.get(PATH, headers={"Range": "bytes=0-9", "If-Range": checkpoint}).content == CONTENT[:10]


def test_a_superseded_checkpoint_is_gone(client: TestClient, checkpoint: str) -> None:
    for method in ("GET", "HEAD"):
        assert client.request(method, PATH.replace("current/check", "1/check")).status_code == 410
    assert client.get(PATH.replace("current/check", "2/check")).status_code == 200


def test_a_damaged_or_missing_file_is_not_served(client: TestClient, service: Service, checkpoint: str) -> None:
    file = path_in(Store.at(service.settings.store), checkpoint.strip('"'))
    file.write_bytes(CONTENT[:-1] + b"!")
    for _ in range(2):
        answer = client.get(PATH)
        assert (answer.status_code, answer.json()["code"]) == (500, "checkpoint_damaged")
        file.unlink(missing_ok=True)


def test_a_checkpoint_while_the_bucket_is_away_is_asked_for_again(
    client: TestClient, service: Service, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = pytest.importorskip("expunge_service.infra.bucket", reason="unverified here: obstore is not installed")
    monkeypatch.setattr(bucket, "RETRY_SECONDS", 0)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"):
        monkeypatch.setenv(f"AWS_{name}", "any")
    service.__dict__["store"] = Store(folder_at("s3://bucket/store"))
    with service.database.write() as session:
        session.scalars(select(Generation)).one().report = {FIGURES: True}
    answer = client.get(PATH)
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    model = client.get("/v1/models/digits")
    assert (model.status_code, model.json()["preparation"]["report"]) == (200, None), "the rest is in the database"


def test_a_model_key_cannot_download_checkpoints(client: TestClient, checkpoint: str, key_of: Keys) -> None:
    assert client.get(PATH, headers=key_of("models:read")).status_code == 403
    assert client.get(PATH, headers=key_of("checkpoints:read")).status_code == 200
    assert client.get(PATH, headers=key_of("checkpoints:read", tenant_id="other")).status_code == 404


@pytest.mark.both_engines
def test_the_budget_says_what_was_spent_and_what_is_left(client: TestClient, service: Service) -> None:
    model = live_model(service)
    empty = client.get("/v1/models/digits/budget").json()
    assert (empty["spent"], empty["remaining"], empty["updates_left"], empty["epsilon_spent"]) == (
        0,
        10_500_000,
        10,
        0,
    )
    with service.database.write() as session:
        for _ in range(3):
            charge(session, model.generation_id or 0, None, 1_000_000)
    budget = client.get("/v1/models/digits/budget").json()
    assert (budget["spent"], budget["limit"], budget["remaining"]) == (3_000_000, 10_500_000, 7_500_000)
    assert (budget["updates"], budget["updates_left"], budget["guarantee"]) == (3, 7, "proved")
    assert 0 < budget["epsilon_spent"] < budget["epsilon_limit"]


def test_a_model_without_a_bound_has_no_budget(client: TestClient) -> None:
    client.post("/v1/models", json=BODY)
    budget = client.get("/v1/models/digits/budget").json()
    assert {budget[name] for name in ("limit", "remaining", "updates_left", "epsilon_spent", "max_distance")} == {None}
