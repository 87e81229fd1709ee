"""The installation's regulation: the deadline of requests that do not mention one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.infra.settings import Settings
from tests.service.worlds import live_model

PATH = "/v1/deletion-requests"
ASKED = "2026-01-31T12:00:00Z"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"default_regulation": "ccpa"})


@pytest.fixture
def asked(client: TestClient) -> Iterator[TestClient]:
    live_model(client.app.state.service)  # type: ignore[attr-defined]
    yield client


def post(client: TestClient, **body: Any) -> dict[str, Any]:
    order = {"received_at": ASKED} | body
    answer = client.post(PATH, json=order, headers={"Idempotency-Key": secrets.token_hex(8)})
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    "body",
    [{"subject_id": "ada"}, {"subject_id": "nobody"}, {"subject_id": "ada", "verified": False}],
    ids=["matched", "unknown", "unverified"],
)
def test_a_request_that_mentions_no_regulation_is_under_the_installations(
    asked: TestClient, body: dict[str, Any]
) -> None:
    found = post(asked, **body)
    assert found["regulation"] == "ccpa"
    late = datetime.fromisoformat(found["due_at"]) - datetime.fromisoformat(ASKED)
    assert late == timedelta(days=45)


def test_what_a_request_says_itself_counts(asked: TestClient) -> None:
    assert post(asked, subject_id="ada", regulation="gdpr")["due_at"].startswith("2026-02-28T12:00:00")
    none = post(asked, subject_id="ada", regulation=None)
    assert (none["regulation"], none["due_at"]) == (None, None)


def test_every_item_of_a_batch_is_under_it(asked: TestClient) -> None:
    items = {"requests": [{"subject_id": "ada"}, {"subject_id": "bob", "regulation": "gdpr"}]}
    answer = asked.post(f"{PATH}/batch", json=items, headers={"Idempotency-Key": "1"}).json()
    assert [each["request"]["regulation"] for each in answer["outcomes"]] == ["ccpa", "gdpr"]
