"""Orders that are taken in together become what each becomes alone, and one that is refused harms no other."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from expunge_service.access.api_keys import Scope
from expunge_service.api.dependencies import Service
from expunge_service.infra.tables import (
    AuditEntry,
    DeletionRequest,
    IdempotencyKey,
    SuppressionEntry,
    Task,
)
from tests.harness.gathered import Gathered, gather
from tests.service.worlds import live_model

PATH = "/v1/deletion-requests"
Body = dict[str, Any]
BODIES: list[Body] = [
    {"subject_id": "ada"},
    {"subject_id": "ada"},
    {"subject_id": "bob", "regulation": "gdpr", "case_id": "C-1"},
    {"subject_id": "Bob"},
    {"subject_id": "nobody-9"},
    {"subject_ids": ["ada", "bob"]},
    {"sample_ids": ["ada-1", "bob-1", "none"]},
    {"subject_id": "ada", "verified": False},
    {"subject_id": "ada", "models": ["digits"]},
    {"subject_id": "ada", "models": ["letters"], "suppress": "named_models"},
    {"subject_id": "ada", "models": ["missing"]},
    {"subject_id": "bob", "received_at": "2999-01-01T00:00:00Z"},
    {"subject_id": "bob", "regulation": "gdpr", "due_at": "2999-01-01T00:00:00Z"},
    {"subject_id": "bob", "expected_samples": 7},
    {"requests": [{"subject_id": "ada"}, {"subject_id": "ada", "models": ["missing"]}, {"sample_ids": ["bob-1"]}]},
]
OWN = {
    "id", "request", "opening", "instance", "received_at", "due_at", "completed_at", "entry", "at", "commitment",
    "suppressions", "outcome",
}  # fmt: skip
"""what differs between any two requests"""
_ID = re.compile("(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


def app_of(client: TestClient) -> FastAPI:
    app = client.app
    assert isinstance(app, FastAPI)
    return app


def plain(value: Any) -> Any:
    """Return an answer or an audit entry without what differs between any two requests."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items() if name not in OWN or isinstance(part, dict)}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return _ID.sub("ID", value) if isinstance(value, str) else value


def send(client: TestClient, place: int, body: Body, key: str, **headers: str) -> tuple[int, Any]:
    path = f"{PATH}/batch" if "requests" in body else PATH
    answer = client.post(path, json=body, headers={"Idempotency-Key": f"{key}-{place}", **headers})
    return answer.status_code, answer.json()


def together(
    client: TestClient, sends: Sequence[Callable[[], tuple[int, Any]]]
) -> tuple[list[tuple[int, Any]], Gathered]:
    """Send all of them as one group."""
    intake = gather(app_of(client), len(sends))
    with ThreadPoolExecutor(len(sends)) as pool:
        answers = [each.result(60) for each in [pool.submit(send) for send in sends]]
    return answers, intake


def rows_of(service: Service, answers: Sequence[tuple[int, Any]]) -> list[Any]:
    """Return what the calls wrote, by request in the order of the answers."""
    views = [view for _, body in answers for view in [body, *(each["request"] for each in body.get("outcomes", ()))]]
    found = []
    with service.database.read() as session:
        for request_id in [view["id"] for view in views if view and "id" in view]:
            request = session.get_one(DeletionRequest, request_id)

            def columns(kind: Any, *own: str, mine: str = request_id) -> list[Any]:
                rows = session.execute(select(kind.__table__).where(kind.request_id == mine)).mappings()
                kept = ({name: value for name, value in row.items() if name not in own} for row in rows)
                return sorted(kept, key=repr)

            log = columns(AuditEntry, "id", "request_id", "created_at", "log_index", "leaf_hash")
            for entry in log:
                entry["body"] = plain(json.loads(entry["body"]))
            moments = ("id", "request_id", "created_at", "not_before", "lifted_at")
            row = [
                getattr(request, name) for name in ("status", "reason", "models", "outcome", "near", "caller", "facts")
            ]
            found.append([row, columns(Task, *moments), columns(SuppressionEntry, *moments), log])
    return found


@pytest.mark.both_engines
@pytest.mark.parametrize("seed", range(2))
def test_orders_together_become_what_they_become_one_by_one(client: TestClient, service: Service, seed: int) -> None:
    live_model(service)
    live_model(service, "letters", {"ada": ["l-1"], "cyd": ["l-2"]})
    bodies = [*BODIES]
    random.Random(seed).shuffle(bodies)
    alone = [send(client, place, body, "alone") for place, body in enumerate(bodies)]
    sends = [lambda place=place, body=body: send(client, place, body, "group") for place, body in enumerate(bodies)]
    group, intake = together(client, sends)
    assert intake.sizes == [len(bodies)]
    assert [(status, plain(body)) for status, body in group] == [(status, plain(body)) for status, body in alone]
    assert {status for status, _ in group} == {202, 207, 422}
    assert rows_of(service, group) == rows_of(service, alone)
    again = [send(client, place, body, "group") for place, body in enumerate(bodies)]
    assert [each for each in again if each[0] != 422] == [each for each in group if each[0] != 422]


@pytest.mark.both_engines
def test_calls_of_one_group_with_one_key_are_one_request(client: TestClient, service: Service) -> None:
    live_model(service)
    body = {"subject_id": "ada"}
    same = [lambda: send(client, 0, body, "k")] * 3
    answers, intake = together(client, [*same, lambda: send(client, 0, {"subject_id": "bob"}, "k")])
    assert sorted(intake.sizes) == [1, 1, 1, 1]
    codes = sorted(status for status, _ in answers)
    assert codes in ([202, 202, 202, 422], [202, 422, 422, 422])  # whichever body came first has the key
    assert len({answer["id"] for status, answer in answers if status == 202}) == 1
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 1
        assert session.scalar(select(func.count()).select_from(IdempotencyKey)) == 1


@pytest.mark.both_engines
def test_each_request_of_a_group_names_its_own_caller_and_trace(
    client: TestClient, service: Service, key_of: Callable[..., dict[str, str]]
) -> None:
    live_model(service)
    keys = [key_of(*list(Scope)) for _ in range(3)]
    traces = [f"00-{number:032x}-{1:016x}-01" for number in range(1, 7)]

    def sender(place: int) -> Callable[[], tuple[int, Any]]:
        headers = {**keys[place % 3], "traceparent": traces[place]}
        return lambda: send(client, place, {"subject_id": "ada"}, "k", **headers)

    alone = [sender(place)() for place in range(3)]
    with service.database.read() as session:
        actors = [
            json.loads(session.scalars(select(AuditEntry.body).where(AuditEntry.request_id == body["id"])).one())[
                "actor"
            ]
            for _, body in alone
        ]
    assert len({*actors}) == 3
    answers, intake = together(client, [sender(place) for place in range(3, 6)])
    assert intake.sizes == [3]
    with service.database.read() as session:
        for place, (status, body) in enumerate(answers, 3):
            assert status == 202
            request = session.get_one(DeletionRequest, body["id"])
            entry = session.scalars(select(AuditEntry.body).where(AuditEntry.request_id == request.id)).one()
            said = json.loads(entry)
            assert (said["actor"], said["actor_key"]) == (actors[place % 3], request.caller)
            assert request.traceparent is not None and request.traceparent[3:35] == traces[place][3:35]


@pytest.mark.both_engines
def test_tenants_are_in_groups_of_their_own(
    client: TestClient, service: Service, key_of: Callable[..., dict[str, str]]
) -> None:
    other = key_of("deletions:write", "deletions:read", tenant_id="other")
    live_model(service)
    live_model(service, "theirs", tenant_id="other")
    answers, intake = together(
        client,
        [
            lambda: send(client, 0, {"subject_id": "ada"}, "k"),
            lambda: send(client, 0, {"subject_id": "ada"}, "k", **other),
        ],
    )
    assert intake.sizes == [1, 1]
    assert [status for status, _ in answers] == [202, 202]
    assert [[part["model"] for part in body["models"]] for _, body in answers] == [["digits"], ["theirs"]]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sixteen_clients_of_sqlite_get_no_503(client: TestClient, service: Service) -> None:
    live_model(service)

    def client_of(number: int) -> set[int]:
        return {send(client, each, {"subject_id": "ada"}, str(number))[0] for each in range(12)}

    with ThreadPoolExecutor(16) as pool:
        assert set().union(*pool.map(client_of, range(16))) == {202}
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 16 * 12
