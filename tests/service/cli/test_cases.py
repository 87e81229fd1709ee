"""A request's case, and a person under several ids: one request, one commitment, one certificate."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_client.cli import people
from expunge_client.cli.output import CommandError
from expunge_client.cli.people import read_people
from expunge_service.api.dependencies import Service
from expunge_service.audit.log import canonical
from expunge_service.infra import time
from expunge_service.infra.tables import AuditEntry, DeletionRequest, SuppressionEntry, WebhookDelivery
from expunge_service.requests import states
from expunge_service.requests.intake import Order, commitment, opening
from expunge_service.requests.reasons import Reason
from tests.service.worlds import live_model
from unlearning.accounting import ids

PATH = "/v1/deletion-requests"
CASE = "DSR-2026/113"
Keys = Callable[..., dict[str, str]]


def send(client: TestClient, key: str, **order: Any) -> Any:
    return client.post(PATH, json=order, headers={"Idempotency-Key": key})


def accepted(service: Service, request: str) -> dict[str, Any]:
    kinds = (AuditEntry.request_id == request, AuditEntry.kind == "request.accepted")
    with service.database.read() as session:
        body: dict[str, Any] = json.loads(session.scalars(select(AuditEntry.body).where(*kinds)).one())
    return body


def test_a_case_is_on_the_request_in_the_list_and_in_webhooks_and_not_in_the_log(
    client: TestClient, service: Service
) -> None:
    client.post("/v1/webhooks", json={"url": "https://example.org/hook"})
    made = send(client, "k", subject_id="nobody", case_id=CASE).json()
    other = send(client, "l", subject_id="nobody").json()
    assert (made["case_id"], other["case_id"]) == (CASE, None)
    listed = client.get(PATH, params={"case_id": CASE}).json()["data"]
    assert [each["id"] for each in listed] == [made["id"]]
    assert client.get(f"{PATH}/{made['id']}").json()["case_id"] == CASE
    with service.database.read() as session:
        payloads = [json.loads(each)["data"] for each in session.scalars(select(WebhookDelivery.payload))]
        log = canonical({"log": list(session.scalars(select(AuditEntry.body)))})
    assert {each["id"]: each["case_id"] for each in payloads} == {made["id"]: CASE, other["id"]: None}
    assert CASE not in log


def test_the_commitment_binds_the_case(client: TestClient, service: Service) -> None:
    made = send(client, "k", subject_id="ada", case_id=CASE).json()
    found, key = accepted(service, made["id"])["commitment"], bytes.fromhex(made["opening"])
    assert found == commitment(key, Order(subject_id="ada", case_id=CASE))
    assert found != commitment(key, Order(subject_id="ada"))
    assert found != commitment(key, Order(subject_id="ada", case_id="DSR-2026/114"))


@pytest.mark.parametrize(
    "case", ["ada@example.org", "+4915112345678", "Ada Lovelace", "", "x" * 65, "a+49", "é", "a\n"]
)
def test_a_case_that_may_name_somebody_is_refused(client: TestClient, case: str) -> None:
    answer = send(client, "k", subject_id="ada", case_id=case)
    assert answer.status_code == 422 and "/case_id" in json.dumps(answer.json()["errors"])
    assert client.get(PATH, params={"case_id": case}).status_code == 422


@pytest.mark.both_engines
def test_several_ids_of_a_person_are_one_request(client: TestClient, service: Service) -> None:
    live_model(service, "digits", {"ada-web": ["a"], "bob": ["b"]})
    live_model(service, "faces", {"ada-app": ["c"]})
    live_model(service, "ranking", {"bob": ["b"]})
    ids = ["ada-web", "ada-app", "ada-web"]
    costs = client.post(f"{PATH}/estimate", json={"subject_ids": ids}).json()
    assert {each["model"]: each["samples"] for each in costs["models"]} == {"digits": 1, "faces": 1}
    made = send(client, "k", subject_ids=ids).json()
    assert [part["model"] for part in made["models"]] == ["digits", "faces"] and made["subject_digest"] is None
    with service.database.read() as session:
        entries = session.scalars(select(SuppressionEntry.subject_digest)).all()
    assert len(entries) == len(set(entries)) == 2
    for who in ("ada-web", "ada-app"):
        found = client.post(f"{PATH}/search", json={"subject_id": who}).json()
        assert [each["id"] for each in found["requests"]] == [made["id"]]
    key = bytes.fromhex(made["opening"])
    assert accepted(service, made["id"])["commitment"] == commitment(key, Order(subject_ids=("ada-app", "ada-web")))
    again = send(client, "l", subject_id="ada-app").json()
    related = client.get(f"{PATH}/{again['id']}").json()["related"]
    assert related == [made["id"]]


def test_one_id_in_a_list_is_the_same_as_one_id(client: TestClient, service: Service) -> None:
    made = send(client, "k", subject_ids=["ada"]).json()
    assert made["subject_digest"] is not None
    found = accepted(service, made["id"])["commitment"]
    assert found == commitment(bytes.fromhex(made["opening"]), Order(subject_id="ada"))


def test_several_ids_wait_for_verification_and_are_large_together(client: TestClient, service: Service) -> None:
    service.settings.__dict__["large_request"] = 3
    live_model(service, "digits", {"one": ["a", "b"], "two": ["c", "d"]})
    made = send(client, "k", subject_ids=["one", "two"], verified=False).json()
    assert made["reason"] == Reason.UNVERIFIED and made["models"] == []
    verified = client.post(f"{PATH}/{made['id']}/verify").json()
    assert [part["reason"] for part in verified["models"]] == [Reason.LARGE], "each id alone is not large"
    nobody = send(client, "l", subject_ids=["x", "y"], verified=False).json()["id"]
    assert client.post(f"{PATH}/{nobody}/verify").json()["reason"] == Reason.NO_MATCH


@pytest.mark.parametrize(
    "order",
    [
        {"subject_ids": []},
        {"subject_ids": ["a"], "subject_id": "a"},
        {"subject_ids": ["a"], "sample_ids": ["a"]},
        {"subject_ids": [""]},
        {"subject_ids": ["a"] * 51},
    ],
)
def test_ids_that_name_nobody_or_two_kinds_are_refused(client: TestClient, order: dict[str, Any]) -> None:
    assert send(client, "k", **order).status_code == 422


def test_the_opening_is_derived_for_every_request(client: TestClient, service: Service) -> None:
    made = send(client, "k", subject_ids=["a", "b"], case_id=CASE).json()
    with service.database.read() as session:
        row = session.get_one(DeletionRequest, made["id"])
    assert opening(service.pepper, row.salt).hex() == made["opening"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rows"),
        ("subject_id\n", "no rows"),
        ("ada\nbob\n", "no column subject_id"),
        ("subject_id,phone\nada,1\n", "another name"),
        ("subject_id,case_id\nada\n", "Row 1"),
        ("subject_id\nada\n\n \n", "Row 2"),
        ("subject_id\nada,x\n", "no column subject_id|Row 1"),
        ("subject_id,subject_id\nada,bob\n", "a column twice"),
        ("subject_id,case_id,case_id\nada,C-1,C-2\n", "a column twice"),
        ("subject_id\nbob\na\u200bda\n", "row 2: subject_id: An id must hold no invisible"),
        (f"subject_id\n{'ada' * 171}\n", "row 1: subject_id has more than 512"),
        ("subject_id,case_id\nbob,no spaces\nada,-x\n", "2 faults .*row 1: case_id takes.*row 2: case_id takes"),
        ("subject_id,received_at\nada,2026-01-31\n", "row 1: received_at must be an RFC 3339"),
        ("subject_id,received_at\nada,0001-01-31T00:00:00Z\n", "row 1: received_at must be a date"),
        ("subject_id,received_at\nada,2026-02-31T00:00:00Z\n", "row 1: received_at must be a date"),
        ("subject_id,received_at\nada,2999-01-31T00:00:00Z\n", "row 1: received_at lies in the future"),
    ],
)
def test_a_file_that_is_no_table_of_people_is_refused_and_not_repeated(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "people.csv"
    path.write_text(text)
    with pytest.raises(CommandError, match=said) as error:
        read_people(path)
    assert not re.search(r"\bada\b", error.value.what)


def test_a_file_of_people_is_checked_by_the_rules_of_the_service() -> None:
    """The client has rules of its own, since it imports nothing of the service: they are the same."""
    assert (people.CASE_ID, people.RFC_3339.pattern) == (states.CASE_ID, time.RFC_3339.pattern)
    for code in range(sys.maxunicode + 1):
        refused = ids._REFUSED.search(chr(code)) is not None
        assert (re.search(f"[{people.HIDDEN}]", chr(code)) is not None) == refused, hex(code)
        if ids._AT_AN_END.search(chr(code)):
            assert not chr(code).strip(), "the client takes white space off both ends"
