"""A thousand ids, spoiled in kinds unknown to the forms: few finish a request, and none reaches a stranger."""

from __future__ import annotations

import secrets
from collections import Counter
from random import Random

import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge_service.api.dependencies import Service
from expunge_service.api.types import PersonalId
from expunge_service.infra.pseudonyms import person_number, subject_digest
from expunge_service.infra.tables import DeletionRequest, Task
from expunge_service.requests.intake import Accepted, Order, accept_all
from tests.harness.spoiled_by_a_stranger import KINDS, SEED, SHAPES, SpoiledId, spoiled_ids
from tests.service.worlds import live_model

_VALID = TypeAdapter(PersonalId)
_BY_CAUSE = {"damaged": "damaged", "shape": "unusual"}


def valid(text: str) -> str | None:
    try:
        return str(_VALID.validate_python(text))
    except ValidationError:
        return None


def outcome(session: Session, service: Service, spoiled: SpoiledId, request_id: str) -> str:
    """What becomes of the request: a person is asked (and about whom), or silent, or wrong."""
    request = session.get_one(DeletionRequest, request_id)
    right = subject_digest(service.pepper, "default", spoiled.id)
    if request.status == "blocked" and request.reason == "near_miss":
        if not request.near:
            return _BY_CAUSE[(request.facts or {})["near_miss"]["cause"]]
        return "near" if person_number(right) in request.near else "somebody else near"
    if request.reason == "no_match":
        return "silent"
    return "right person" if request.subject_digest == right else "wrong"


def live_models(service: Service, arrived: list[SpoiledId]) -> None:
    """A model for each shape, of the people whose ids were spoiled."""
    for shape in SHAPES:
        ids = [spoiled.id for spoiled in arrived if spoiled.shape == shape]
        live_model(service, name=shape, people={id: [f"{shape}-{id}"] for id in ids})


def outcomes_by_kind(service: Service, arrived: list[SpoiledId]) -> dict[str, Counter[str]]:
    """Take the ids in as requests, on a model for each shape, and count by kind what becomes of them."""
    outcomes = {kind: Counter[str]() for kind in KINDS}
    live_models(service, arrived)
    taken = []
    for spoiled in arrived:
        text = valid(spoiled.arrives_as)
        if text is None:
            outcomes[spoiled.kind]["refused"] += 1
        else:
            taken.append((spoiled, text))
    with service.database.write() as session:
        orders = [Order(subject_id=text) for _, text in taken]
        answers = accept_all(session, service.pepper, "default", orders)
        for (spoiled, _), accepted in zip(taken, answers, strict=True):
            assert isinstance(accepted, Accepted)
            outcomes[spoiled.kind][outcome(session, service, spoiled, accepted.request.id)] += 1
    return outcomes


def table(outcomes: dict[str, Counter[str]]) -> str:
    return "\n".join(f"{kind}: {dict(sorted(counts.items()))}" for kind, counts in outcomes.items())


@pytest.mark.both_engines
def test_of_a_thousand_ids_spoiled_by_a_stranger_few_are_silent_and_none_is_wrong(service: Service) -> None:
    arrived = list(spoiled_ids(1000))
    outcomes = outcomes_by_kind(service, arrived)
    total = sum(outcomes.values(), Counter[str]())
    assert total.total() == 1000 and len(KINDS) == 20 and total["refused"] > 0, table(outcomes)
    assert total["wrong"] == 0, table(outcomes)
    with service.database.read() as session:
        deletions = session.scalar(select(func.count()).select_from(Task))
    assert deletions == total["right person"], "nobody else's samples are to be deleted"
    assert total["silent"] <= 120, table(outcomes)


def test_what_counts_as_refused_is_refused_by_the_api(client: TestClient) -> None:
    refused = [spoiled.arrives_as for spoiled in spoiled_ids(1000) if valid(spoiled.arrives_as) is None]
    assert refused
    for text in refused:
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        answer = client.post("/v1/deletion-requests", json={"subject_id": text}, headers=headers)
        assert answer.status_code == 422, repr(text)


def test_of_a_thousand_ids_that_nobody_has_two_are_near_at_most(service: Service) -> None:
    """What finds the right person behind a spoiled id must not take strangers for them."""
    people, dice = list(spoiled_ids(1000)), Random(SEED + 1)
    live_models(service, people)
    known = {spoiled.id for spoiled in people}
    drawn = {id for shape in SHAPES.values() for id in (shape(dice) for _ in range(250))} - known
    strangers = dice.sample(sorted(drawn), 1000)
    with service.database.write() as session:
        orders = [Order(subject_id=id) for id in strangers]
        requests = [accepted.request for accepted in accept_all(session, service.pepper, "default", orders)]
        near = sum(bool(request.near) for request in requests)
    assert len(strangers) == 1000 and near <= 2, near
