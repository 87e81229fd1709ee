"""A rehearsal changes no row, decides as the request itself would, and shows the letter that follows."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from expunge_service.access import Scope
from expunge_service.api.dependencies import Service
from expunge_service.api.views.history import letter_facts
from expunge_service.certificates import letter
from expunge_service.infra.tables import AuditEntry, DeletionRequest, Generation, Model
from tests.service.certificates.test_certificates import PATH, carry_out, tick
from tests.service.certificates.test_plain_words import claim_of
from tests.service.worlds import live_model, publish
from unlearning.accounting.certificate import Guarantee

SEARCHED = "people.searched"
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def rows(service: Service) -> dict[str, list[Any]]:
    """Every row of every table, but what the record of a search and the calls themselves write."""
    with service.database.read() as session:
        tables = session.scalars(text("SELECT name FROM sqlite_master WHERE type = 'table'")).all()
        found = {name: sorted(map(repr, session.execute(text(f'SELECT * FROM "{name}"')))) for name in tables}
    found["audit_entries"] = [each for each in found["audit_entries"] if SEARCHED not in each]
    return found


def rehearsed(client: TestClient, **order: Any) -> dict[str, Any]:
    answer = client.post(f"{PATH}/estimate", json=order)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def claiming(service: Service, guarantee: Guarantee, cost: int = 1_000_001) -> Model:
    """A live model whose version claims so, after one update at this cost (1e-12 mu^2)."""
    model, bounded = live_model(service), guarantee in (Guarantee.PROVED, Guarantee.CALIBRATED)
    more = {"max_distance": 0.01 * math.sqrt(cost / 1e12) * (1 - 1e-9), "spent": cost} if bounded else {}
    publish(service, model, b"two", claim=claim_of(guarantee, **more))
    with service.database.write() as session:
        generation = session.get_one(Generation, model.generation_id)
        generation.spent, generation.budget_cost, generation.budget = cost, cost, 10**11
        return session.get_one(Model, model.id)


@pytest.mark.parametrize(
    "order",
    [
        {"subject_id": "ada", "regulation": "gdpr"},
        {"subject_id": "zoe"},
        {"subject_ids": ["ada", "bob"]},
        {"sample_ids": ["ada-1"]},
        {"subject_id": "ada", "models": ["digits"], "verified": False},
    ],
)
def test_no_row_changes(client: TestClient, service: Service, order: dict[str, Any]) -> None:
    claiming(service, Guarantee.PROVED)
    before = rows(service)
    rehearsed(client, **order)
    after = rows(service)
    changed = {name for name in after if after[name] != before[name]}
    assert changed <= {"api_keys", "search_counts"}, changed


@pytest.mark.parametrize("guarantee", [Guarantee.PROVED, Guarantee.EXACT, Guarantee.NONE, Guarantee.CALIBRATED])
def test_the_letter_says_of_a_guarantee_what_the_real_one_may(
    client: TestClient, service: Service, guarantee: Guarantee
) -> None:
    claiming(service, guarantee)
    told = rehearsed(client, subject_id="ada", regulation="gdpr")
    said = " ".join(told["letter"]["paragraphs"])
    if guarantee in (Guarantee.PROVED, Guarantee.EXACT):
        assert told["letter"]["headline"] == "We have deleted your data from our trained models."
        assert 'We removed 2 records about you from the model "digits". Version 3 is the first without them.' in said
    else:
        assert told["letter"]["headline"] == "We changed our trained models to remove your data."
        assert 'We changed the model "digits" to remove 2 records about you. Version 3 is the first after that.' in said
    assert "signed certificate [ ] and your personal code" in said
    odds = "times in 100" in said or "coin toss" in said
    assert odds == (guarantee in (Guarantee.PROVED, Guarantee.EXACT))


def test_the_charge_of_the_update_is_in_the_letters_number(client: TestClient, service: Service) -> None:
    claiming(service, Guarantee.PROVED, 10**10)
    said = " ".join(rehearsed(client, subject_id="ada")["letter"]["paragraphs"])
    assert "at most 55.7 times in 100" in said  # two updates: Phi(sqrt(0.02)) = 0.5562; one would be 54


def test_where_the_claim_is_unknown_the_letter_gives_no_number(client: TestClient, service: Service) -> None:
    live_model(service)  # its claim is of no release
    said = " ".join(rehearsed(client, subject_id="ada")["letter"]["paragraphs"])
    assert "The certificate is not signed yet." in said and "times in 100" not in said


def test_the_rehearsed_letter_is_the_real_one_but_for_the_certificate(client: TestClient, service: Service) -> None:
    """The slow twin: the request is made and carried out; then the letter is written from the tables."""
    model = live_model(service)
    for subject in ("ada", "zoe"):
        told = rehearsed(client, subject_id=subject, regulation="gdpr")
        made = client.post(
            PATH, json={"subject_id": subject, "regulation": "gdpr"}, headers={"Idempotency-Key": subject}
        ).json()
        later = datetime.fromisoformat(made["due_at"]) - datetime.fromisoformat(told["due_at"])
        assert timedelta() <= later < timedelta(seconds=20), "the request is made after the rehearsal"
        if subject == "ada":
            carry_out(service, model, made["id"], first=0)
            tick(service)
        with service.database.read() as session:
            real = letter(letter_facts(session, session.get_one(DeletionRequest, made["id"])))
        assert real is not None
        assert told["letter"]["headline"] == real.headline
        paragraphs = [f"{lead}. {said}" if lead else said for lead, said in real.paragraphs]
        assert told["letter"]["paragraphs"] == paragraphs


def test_of_a_person_who_was_deleted_before_it_says_so(client: TestClient, service: Service) -> None:
    model = live_model(service)
    made = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "first"}).json()
    carry_out(service, model, made["id"], first=0)
    told = rehearsed(client, subject_id="ada")
    assert (told["models"], told["preparing"], told["samples"]) == ([], [], 0)
    assert told["letter"]["headline"] == "We had already acted on your data, for an earlier request."
    assert 'we had removed your data from the model "digits" (version 2 of ' in " ".join(told["letter"]["paragraphs"])


def test_a_hold_comes_before_the_letter(client: TestClient, service: Service) -> None:
    live_model(service)
    client.post("/v1/holds", json={"subject_id": "ada", "reason": "court"}, headers={"Idempotency-Key": "h"})
    told = rehearsed(client, subject_id="ada")
    (part,) = told["models"]
    assert (part["reason"], part["version"], part["expected_at"], told["letter"]) == ("legal_hold", None, None, None)


def test_what_waits_says_until_when(client: TestClient, service: Service) -> None:
    model = claiming(service, Guarantee.PROVED)
    with service.database.write() as session:
        session.get_one(Model, model.id).policy = {"method": "recollection", "batch": 7 * 86_400}
    (part,) = rehearsed(client, subject_id="ada", regulation="gdpr")["models"]
    assert part["reason"] == "awaiting_batch" and part["version"] == 3
    with service.database.write() as session:
        generation = session.get_one(Generation, model.generation_id)
        generation.spent = generation.budget = 10**7
    (part,) = rehearsed(client, subject_id="ada")["models"]
    assert (part["reason"], part["expected_at"]) == ("awaiting_retrain", None)
    with service.database.write() as session:
        session.get_one(Model, model.id).policy = {"method": "recollection", "fallback": "hold"}
    told = rehearsed(client, subject_id="ada")
    assert (told["models"][0]["reason"], told["letter"]) == ("budget_exhausted", None)


def test_a_key_that_only_searches_learns_no_more_than_before(api: TestClient, service: Service, key_of: Any) -> None:
    claiming(service, Guarantee.PROVED)
    api.headers.update(key_of(Scope.PEOPLE_SEARCH))
    told = rehearsed(api, subject_id="ada")
    (part,) = told["models"]
    assert (part["version"], part["reason"], part["expected_at"], told["letter"]) == (None, None, None, None)
    assert part["samples"] == 2


def test_searching_is_recorded(client: TestClient, service: Service) -> None:
    live_model(service)
    search = rehearsed(client, subject_id="ada")["search"]
    with service.database.read() as session:
        entries = session.scalars(select(AuditEntry)).all()
        assert [each.kind for each in entries if search in each.body and "ada" not in each.body] == [SEARCHED]
        assert session.scalars(select(DeletionRequest)).all() == []
