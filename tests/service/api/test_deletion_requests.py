"""Taking in deletion requests over HTTP, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, func, select, update

from expunge_service.access.api_keys import authenticate, create_key, rotate_key
from expunge_service.api.dependencies import Service
from expunge_service.infra.broker.notify import publisher
from expunge_service.infra.limits import Limits
from expunge_service.infra.tables import (
    ApiKey,
    AuditEntry,
    DeletionRequest,
    IdempotencyKey,
    Membership,
    Model,
    SuppressionEntry,
    Task,
)
from expunge_service.infra.time import DAY_SECONDS, SECOND
from expunge_service.requests.idempotency import Use, begin_calls
from expunge_service.requests.intake import Order, commitment
from expunge_service.requests.status import settle
from tests.service.conftest import Login
from tests.service.worlds import live_model, publish

PATH = "/v1/deletion-requests"
CANARY = "canary-3f9a77-person@example.org"


def post(client: TestClient, key: str | None = None, **body: Any) -> Any:
    headers = {"Idempotency-Key": key or secrets.token_hex(8)}
    return client.post(PATH, json=body, headers=headers)


@pytest.mark.both_engines
def test_a_known_subject_is_queued_for_every_model_that_was_trained_on_them(
    client: TestClient, service: Service
) -> None:
    live_model(service, "digits")
    live_model(service, "faces", {"ada": ["x"]})
    live_model(service, "others", {"zoe": ["z"]})
    answer = post(client, subject_id="ada", regulation="gdpr")
    assert answer.status_code == 202
    body = answer.json()
    assert answer.headers["location"] == f"{PATH}/{body['id']}"
    assert answer.headers["retry-after"]
    assert body["status"] == "queued"
    assert [part["model"] for part in body["models"]] == ["digits", "faces"]
    assert {part["status"] for part in body["models"]} == {"queued"}
    shown = client.get(answer.headers["location"]).json()
    assert shown == {name: value for name, value in body.items() if name not in ("opening", "remains_in", "note")} | {
        "related": [],
        "cancellable": True,
    }


def test_an_unknown_subject_completes_at_once_and_leaves_a_suppression(client: TestClient, service: Service) -> None:
    live_model(service)
    body = post(client, subject_id="nobody").json()
    assert (body["status"], body["samples"], body["reason"], body["models"]) == ("completed", 0, "no_match", [])
    assert body["completed_at"] is not None and body["title"] == "No model holds data under this id (1 searched)."
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(SuppressionEntry)) == 1


def test_a_request_for_named_models_says_nothing_of_the_others(
    client: TestClient, service: Service, login: Login, key_of: Callable[..., dict[str, str]]
) -> None:
    live_model(service)
    live_model(service, "people", {"zoe": ["z1", "z2", "z3"]})
    body = post(client, subject_id="zoe", models=["digits"], regulation="gdpr").json()
    plain = "The models you named hold no data under this id"
    assert (body["status"], body["reason"], body["limited_to"]) == ("completed", "not_in_named_models", ["digits"])
    shown = client.get(f"{PATH}/{body['id']}").json()
    assert shown["title"] == f"{plain}; people still holds 3 samples."
    assert [each["command"] for each in shown["actions"]] == ["expunge delete --subject ID"]
    reader = client.get(f"{PATH}/{body['id']}", headers=key_of("deletions:read", "models:read")).json()
    assert reader["title"] == f"{plain}.", "where else the person is known takes people:search"
    with service.database.write() as session:
        row = session.get_one(DeletionRequest, body["id"])
        row.due_at = (row.completed_at or 0) + 29 * DAY_SECONDS * SECOND
    console = login()
    page, listed = console.get(f"/console/requests/{body['id']}").text, console.get("/console/requests").text
    for text in (page, listed):
        assert "named models done 29 days before the deadline" in text
        assert "No model" not in text
    assert "people still holds 3 samples" in page and "Delete from all models" in page
    met = post(client, subject_id="zoe", regulation="gdpr").json()
    assert met["reason"] is None, "the model that was not named gets a task now"


def test_what_other_models_deleted_is_no_reason_of_a_request_for_named_ones(
    client: TestClient, service: Service
) -> None:
    """The request is about digits, which never held the person that faces has forgotten."""
    live_model(service)
    faces = live_model(service, "faces", {"zoe": ["z1"]})
    first = post(client, subject_id="zoe").json()["id"]
    version = publish(service, faces, b"two")
    with service.database.write() as session:
        session.execute(
            update(Task).where(Task.request_id == first).values(status="completed", samples=1, version_id=version.id)
        )
        session.execute(
            delete(Membership).where(Membership.generation_id == faces.generation_id)
        )  # trained again since
        settle(session, [first])
    assert post(client, subject_id="zoe", models=["digits"]).json()["reason"] == "not_in_named_models"
    for models in ({"models": ["faces"]}, {}):
        told = post(client, subject_id="zoe", **models).json()
        assert told["title"] == f"Request {first} already deleted these samples."
        assert [each["path"] for each in told["actions"]] == [f"{PATH}/{first}"]


def test_a_model_that_is_preparing_always_gets_a_task(client: TestClient, service: Service) -> None:
    assert (
        client.post("/v1/models", json={"name": "new", "recipe": "digits", "method": "recollection"}).status_code == 202
    )
    body = post(client, subject_id="nobody").json()
    assert body["status"] == "queued"
    assert [part["model"] for part in body["models"]] == ["new"]


def test_a_request_can_be_limited_to_models(client: TestClient, service: Service) -> None:
    live_model(service, "digits")
    live_model(service, "faces", {"ada": ["x"]})
    body = post(client, subject_id="ada", models=["faces"]).json()
    assert [part["model"] for part in body["models"]] == ["faces"]


def test_a_request_by_samples_writes_one_suppression_for_each(client: TestClient, service: Service) -> None:
    live_model(service)
    body = post(client, sample_ids=["ada-1", "ada-1", "unknown"]).json()
    assert body["status"] == "queued"
    assert body["subject_digest"] is None
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(SuppressionEntry)) == 2


def test_a_second_request_for_the_same_person_gets_tasks_of_its_own(client: TestClient, service: Service) -> None:
    live_model(service)
    first, second = post(client, subject_id="ada").json(), post(client, subject_id="ada").json()
    assert first["id"] != second["id"]
    assert first["models"] == second["models"]


def test_an_unknown_model_is_refused_and_nothing_is_written(client: TestClient, service: Service) -> None:
    answer = post(client, subject_id="ada", models=["digits", CANARY.partition("@")[0]])
    assert answer.status_code == 422
    assert answer.json()["code"] == "unknown_model"
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/models/0", "/models/1"]
    assert "canary" not in answer.text
    with service.database.read() as session:
        for table in (DeletionRequest, SuppressionEntry, IdempotencyKey):
            assert session.scalar(select(func.count()).select_from(table)) == 0


@pytest.mark.both_engines
def test_the_same_key_and_body_is_the_same_request(client: TestClient, service: Service) -> None:
    live_model(service)
    first, again = post(client, "k-1", subject_id="ada"), post(client, "k-1", subject_id="ada")
    assert again.status_code == 202
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 1


def test_the_same_key_with_another_body_is_refused(client: TestClient, service: Service) -> None:
    post(client, "k-1", subject_id="ada")
    answer = post(client, "k-1", subject_id="bob")
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")


def test_keys_of_two_callers_do_not_meet(client: TestClient, key_of: Callable[..., dict[str, str]]) -> None:
    first = post(client, "k-1", subject_id="ada").json()
    client.headers.update(key_of())
    assert post(client, "k-1", subject_id="bob").json()["id"] != first["id"]


@pytest.mark.parametrize("key", ["", "a\\b", 'un"quoted', "x" * 256, '"' + "y" * 256 + '"', "caf\u00e9".encode()])
def test_a_malformed_idempotency_key_is_refused(client: TestClient, key: Any) -> None:
    answer = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": key})
    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_invalid")


def test_a_missing_idempotency_key_is_refused(client: TestClient) -> None:
    answer = client.post(PATH, json={"subject_id": "ada"})
    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_missing")


def test_a_quoted_key_and_a_bare_one_are_the_same(client: TestClient) -> None:
    assert post(client, '"k 1"', subject_id="ada").status_code == 202
    assert post(client, '"k1"', subject_id="ada").json() == post(client, "k1", subject_id="ada").json()


@pytest.mark.both_engines
def test_an_expired_key_may_be_used_again(client: TestClient, service: Service) -> None:
    first = post(client, "k-1", subject_id="ada").json()
    with service.database.write() as session:
        for row in session.scalars(select(IdempotencyKey)):
            row.expires_at = 1
    assert post(client, "k-1", subject_id="bob").json()["id"] != first["id"]


@pytest.mark.both_engines
def test_a_repeat_after_the_api_key_was_rotated_is_the_same_request(client: TestClient, service: Service) -> None:
    live_model(service)
    single, batch = {"subject_id": "ada"}, {"requests": [{"subject_id": "bob"}]}
    calls = ((PATH, single, {"Idempotency-Key": "k-1"}), (f"{PATH}/batch", batch, {"Idempotency-Key": "k-2"}))
    first = [client.post(path, json=body, headers=headers) for path, body, headers in calls]
    with service.database.write() as session:
        prefix = client.headers["Authorization"].split("_")[1]
        successor = rotate_key(session, service.pepper, prefix, 0)
        assert successor is not None
    assert client.get("/v1/models").status_code == 401, "the old API key is over"
    client.headers["Authorization"] = f"Bearer {successor.secret}"
    again = [client.post(path, json=body, headers=headers) for path, body, headers in calls]
    assert [answer.json() for answer in again] == [answer.json() for answer in first]
    assert post(client, "k-1", subject_id="bob").json()["code"] == "idempotency_key_reused"
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 2


@pytest.mark.both_engines
def test_an_idempotency_key_is_one_for_all_api_keys_of_an_actor_and_another_for_another_actor(
    client: TestClient, service: Service, key_of: Callable[..., dict[str, str]]
) -> None:
    live_model(service)
    first = post(client, "k-1", subject_id="ada").json()
    body, names = {"subject_id": "ada"}, {"Idempotency-Key": "k-1"}
    with service.database.read() as session:
        caller = authenticate(session, service.pepper, client.headers["Authorization"].removeprefix("Bearer "))
    assert caller is not None
    with service.database.write() as session:
        poorer = create_key(
            session, service.pepper, label="", scopes=["deletions:write"], actor_id=caller.actor_id
        ).secret
    same = client.post(PATH, json=body, headers=names | {"Authorization": f"Bearer {poorer}"}).json()
    assert same["id"] == first["id"] and "models" not in same, "and it shows what that API key may see"
    other = client.post(PATH, json=body, headers=names | key_of("deletions:write")).json()
    assert other["id"] != first["id"]


@pytest.mark.both_engines
def test_a_call_of_before_the_migration_is_found_under_its_api_key(client: TestClient, service: Service) -> None:
    live_model(service)
    first = post(client, "k-1", subject_id="ada").json()
    with service.database.write() as session:
        key_id = session.scalars(select(ApiKey.id)).one()
        session.scalars(select(IdempotencyKey)).one().actor_id = key_id
    assert post(client, "k-1", subject_id="ada").json() == first


@pytest.mark.both_engines
def test_many_calls_with_one_key_make_one_request(client: TestClient, service: Service) -> None:
    live_model(service)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(client, "k-1", subject_id="ada"), range(8)))
    assert {answer.status_code for answer in answers} <= {202, 409}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 202}) == 1
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 1
        assert session.scalar(select(func.count()).select_from(Task)) == 1


@pytest.mark.both_engines
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_key_that_is_in_use_right_now_is_refused_at_once(client: TestClient, service: Service) -> None:
    with service.database.read() as session:
        caller = authenticate(session, service.pepper, client.headers["Authorization"].removeprefix("Bearer "))
    assert caller is not None
    with service.database.write() as session:
        assert begin_calls(session, [Use(caller, "k-1", "0" * 64)]) == [None]
        answer = post(client, "k-1", subject_id="ada")
        assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_key_in_flight")
        assert answer.headers["retry-after"]
        assert post(client, "k-2", subject_id="ada").status_code == 202
    assert post(client, "k-1", subject_id="ada").status_code == 202


@pytest.mark.both_engines
def test_no_table_holds_the_subject_in_clear(client: TestClient, service: Service) -> None:
    live_model(service)
    post(client, subject_id=CANARY)
    post(client, sample_ids=[CANARY])
    with service.database.read() as session:
        for table in (DeletionRequest, SuppressionEntry, Task, AuditEntry, IdempotencyKey):
            for row in session.execute(select(table.__table__)):  # type: ignore[arg-type]
                assert CANARY not in repr(row)


def test_the_opening_proves_whom_the_audit_entry_names_and_is_kept_nowhere(
    client: TestClient, service: Service
) -> None:
    answer = post(client, "k-1", subject_id="ada").json()
    with service.database.read() as session:
        entry = json.loads(session.scalars(select(AuditEntry.body).where(AuditEntry.kind == "request.accepted")).one())
        stored = session.scalars(select(IdempotencyKey)).one()
        assert "opening" not in stored.answer
        for table in (DeletionRequest, AuditEntry):
            assert answer["opening"] not in repr(session.execute(select(table.__table__)).all())  # type: ignore[arg-type]
    opening = bytes.fromhex(answer["opening"])
    assert entry["commitment"] == commitment(opening, Order(subject_id="ada"))
    assert entry["commitment"] != commitment(opening, Order(subject_id="bob"))


def test_gdpr_is_due_in_a_month_and_ccpa_in_45_days(client: TestClient) -> None:
    gdpr = post(client, subject_id="a", regulation="gdpr", received_at="2026-01-31T10:00:00+02:00").json()
    assert (gdpr["received_at"], gdpr["due_at"]) == ("2026-01-31T08:00:00.000000Z", "2026-02-28T08:00:00.000000Z")
    ccpa = post(client, subject_id="a", regulation="ccpa", received_at="2026-01-31T08:00:00Z").json()
    assert ccpa["due_at"] == "2026-03-17T08:00:00.000000Z"
    assert post(client, subject_id="a").json()["due_at"] is None


def test_a_request_cannot_come_from_the_future(client: TestClient) -> None:
    later = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    answer = post(client, subject_id="ada", received_at=later)
    assert (answer.status_code, answer.json()["code"]) == (422, "received_in_future")


MALFORMED: tuple[Any, ...] = (
    {},
    {"subject_id": "ada", "sample_ids": ["x"]},
    {"subject_id": ""},
    {"subject_id": 7},
    {"subject_id": "x" * 513},
    {"sample_ids": []},
    {"sample_ids": "ada"},
    {"sample_ids": [str(n) for n in range(51)]},
    {"subject_id": "ada", "models": []},
    {"subject_id": "ada", "models": ["../../etc"]},
    {"subject_id": "ada", "regulation": "hipaa"},
    {"subject_id": "ada", "verified": 0},
    {"subject_id": "ada", "verified": "no"},
    {"subject_id": "ada", "received_at": "2026-01-31T10:00:00"},
    {"subject_id": "ada", "received_at": "2026-01-31"},
    {"subject_id": "ada", "received_at": 1700000000},
    {"subject_id": "ada", "received_at": "0001-01-01T00:00:00+23:59"},
    {"subject_id": "ada", CANARY: 1},
    {"subject_id": {CANARY: CANARY}},
    {"subject_id": "\ud800" + CANARY},
    {"subject_id": CANARY + " "},
    {"subject_id": "\u00a0" + CANARY},
    {"subject_id": "a\u200b" + CANARY},
    {"subject_ids": ["ada", CANARY + "\n"]},
    {"sample_ids": ["\ufeff" + CANARY]},
    [CANARY],
    CANARY,
    None,
)


def test_a_malformed_order_is_a_problem_that_repeats_nothing(client: TestClient, service: Service) -> None:
    for body in MALFORMED:
        answer = client.post(
            PATH, content=json.dumps(body), headers={"Idempotency-Key": "k", "Content-Type": "application/json"}
        )
        assert answer.status_code == 422, body
        assert answer.headers["content-type"] == "application/problem+json", body
        assert "canary" not in answer.text, body
        assert {"type", "title", "status", "detail", "instance", "code", "errors"} <= answer.json().keys(), body
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 0


def test_both_spellings_of_an_id_are_the_same_person_at_every_door(client: TestClient, service: Service) -> None:
    composed, decomposed = "Zo\u00eb", "Zoe\u0308"
    live_model(service, "digits", {decomposed: ["caf\u00e9"]})
    assert client.post(f"{PATH}/estimate", json={"subject_id": decomposed}).json()["samples"] == 1
    assert client.post(f"{PATH}/estimate", json={"sample_ids": ["cafe\u0301"]}).json()["samples"] == 1
    first = post(client, subject_id=composed, key="both")
    again = post(client, subject_id=decomposed, key="both")
    assert first.json()["models"][0]["model"] == "digits" and again.json() == first.json(), "one body, one request"
    for spelling in (composed, decomposed):
        found = client.post(f"{PATH}/search", json={"subject_id": spelling}).json()
        assert [each["id"] for each in found["requests"]] == [first.json()["id"]]
        hold = client.post("/v1/holds", json={"subject_id": spelling, "reason": "court"}).json()
        assert hold["subject_digest"] == first.json()["subject_digest"]
    for order in (Order(subject_id=decomposed), Order(subject_ids=(composed, decomposed))):
        key = bytes.fromhex(first.json()["opening"])
        assert commitment(key, order) == commitment(key, Order(subject_id=composed))


def test_the_cancel_window_keeps_tasks_from_being_claimed(client: TestClient, service: Service) -> None:
    live_model(service)
    object.__setattr__(service, "settings", service.settings.model_copy(update={"cancel_window": 3600.0}))
    post(client, subject_id="ada")
    with service.database.read() as session:
        task = session.scalars(select(Task)).one()
    assert task.not_before - task.created_at == 3_600_000_000


def test_a_request_is_completed_only_when_every_model_is(client: TestClient, service: Service) -> None:
    models = [live_model(service, "digits"), live_model(service, "faces", {"ada": ["x"]})]
    body = post(client, subject_id="ada").json()
    for count, model in enumerate(models, start=1):
        version = publish(service, model, model.name.encode())
        with service.database.write() as session:
            task = session.scalars(select(Task).where(Task.model_id == model.id)).one()
            task.status, task.samples, task.version_id, task.method = "completed", 2, version.id, "recollection"
            assert settle(session, [body["id"]]) == ([] if count == 1 else [body["id"]])
        shown = client.get(f"{PATH}/{body['id']}").json()
        assert shown["status"] == ("queued" if count == 1 else "completed")
    assert shown["samples"] == 4
    assert [part["version"] for part in shown["models"]] == [2, 2]


@pytest.mark.both_engines
def test_the_list_pages_through_everything_once_newest_first(client: TestClient, service: Service) -> None:
    live_model(service)
    made = [post(client, subject_id="ada" if n % 2 else f"p{n}").json()["id"] for n in range(7)]
    seen, cursor = [], None
    while True:
        answer = client.get(PATH, params={"limit": 3} | ({"cursor": cursor} if cursor else {}))
        page = answer.json()
        seen += [each["id"] for each in page["data"]]
        assert page["has_more"] == (page["next_cursor"] is not None) == ("next" in answer.links)
        if not page["has_more"]:
            break
        cursor = page["next_cursor"]
        assert f"cursor={cursor}" in answer.links["next"]["url"]
    assert sorted(seen) == sorted(made)
    times = [client.get(f"{PATH}/{each}").json()["received_at"] for each in seen]
    assert times == sorted(times, reverse=True)
    assert len(client.get(PATH, params={"status": "queued"}).json()["data"]) == 3
    assert len(client.get(PATH, params={"model": "digits"}).json()["data"]) == 3
    assert client.get(PATH, params={"model": "others"}).json()["data"] == []


@pytest.mark.parametrize("cursor", ["x", "W10", "WyJhIiwiYiJd", "WzEsICJhIiwgMl0", "bnVsbA", "WzFlOTk5LCAiYSJd"])
def test_a_cursor_we_did_not_make_is_refused(client: TestClient, cursor: str) -> None:
    assert client.get(PATH, params={"cursor": cursor}).status_code == 422


def test_a_request_of_another_tenant_does_not_exist(client: TestClient, key_of: Callable[..., dict[str, str]]) -> None:
    made = post(client, subject_id="ada").json()["id"]
    other = key_of(tenant_id="other")
    assert client.get(f"{PATH}/{made}", headers=other).status_code == 404
    assert client.get(PATH, headers=other).json()["data"] == []


def test_a_broker_that_is_down_does_not_fail_the_request(client: TestClient, service: Service) -> None:
    live_model(service)
    object.__setattr__(service, "notifier", publisher("redis://127.0.0.1:1/0"))
    assert post(client, subject_id="ada").status_code == 202


@pytest.mark.both_engines
def test_membership_rows_are_found_by_sample_in_long_lists(service: Service, client: TestClient) -> None:
    live_model(service, "many", {f"p{n}": [f"s{n}"] for n in range(1200)})
    object.__setattr__(service, "limits", Limits(sample_ids=2000))
    body = post(client, sample_ids=[f"none{n}" for n in range(1100)] + ["s1199"]).json()
    assert body["status"] == "queued"
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Membership)) == 1200
        assert session.scalar(select(func.count()).select_from(Model)) == 1
