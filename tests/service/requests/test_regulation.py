"""The installation's regulation: the deadline of requests that do not mention one."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi.testclient import TestClient

from expunge_service.infra.settings import RegulationName, Settings
from expunge_service.requests.deadlines import REGULATIONS, Regulation, Term, due_at
from expunge_service.requests.deadlines import extended as extended_to
from tests.service.worlds import live_model

PATH = "/v1/deletion-requests"
ASKED = "2026-01-31T12:00:00Z"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"regulation": "ccpa"})


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


TABLE = Path(__file__).parents[3] / "docs" / "privacy-officer.md"


def test_the_table_of_the_documentation_is_that_of_the_source() -> None:
    def said(term: Term | None) -> str:
        if term is None:
            return "never"
        return f"{term.days} days" if term.days else f"{term.months} month{'s' * (term.months > 1)}"

    rows = dict(
        re.findall(r"^\| `([a-z-]+)` \| [^|]+ \| ([^|]+ \| [^|]+) \| [^|]+ \|$", TABLE.read_text(), re.MULTILINE)
    )
    wanted = {
        law.value: f"{said(terms.first)} | {said(terms.extended)}{' in all' if terms.extended else ''}"
        for law, terms in REGULATIONS.items()
    }
    assert {name: rows.get(name) for name in wanted} == wanted
    assert wanted.keys() == set(Regulation) == set(get_args(RegulationName))


@pytest.mark.parametrize(
    ("law", "due", "extended"),
    [
        ("gdpr", "2026-02-28", "2026-04-30"),
        ("uk-gdpr", "2026-02-28", "2026-04-30"),
        ("ccpa", "2026-03-17", "2026-05-01"),
        ("vcdpa", "2026-03-17", "2026-05-01"),
        ("pipeda", "2026-03-02", "2026-04-01"),
        ("lgpd", "2026-02-15", None),
    ],
)
def test_each_law_has_its_days_and_its_extension(law: str, due: str, extended: str | None) -> None:
    received = datetime.fromisoformat(ASKED)
    first, later = due_at(received, Regulation(law)), extended_to(received, Regulation(law))
    assert first is not None and first.isoformat() == f"{due}T12:00:00+00:00"
    assert (later and later.isoformat()) == (extended and f"{extended}T12:00:00+00:00")


def test_a_deadline_of_ones_own_counts_and_is_not_extended(asked: TestClient) -> None:
    own = "2999-05-05T00:00:00Z"
    made = post(asked, subject_id="ada", due_at=own)
    assert (made["due_at"], made["regulation"]) == ("2999-05-05T00:00:00.000000Z", None), "not the installation's"
    refused = asked.post(f"{PATH}/{made['id']}/extend")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_extendable")
    recent = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    brazil = post(asked, subject_id="ada", regulation="lgpd", received_at=recent)
    assert asked.post(f"{PATH}/{brazil['id']}/extend").json()["code"] == "not_extendable"
    texas = post(asked, subject_id="ada", regulation="tdpsa", received_at=recent)
    longer = asked.post(f"{PATH}/{texas['id']}/extend").json()
    assert datetime.fromisoformat(longer["due_at"]) - datetime.fromisoformat(recent) == timedelta(days=90)
    for body in ({"due_at": own, "regulation": "gdpr"}, {"due_at": "2026-01-01T00:00:00Z"}, {"regulation": "gdrp"}):
        order = {"subject_id": "ada", "received_at": ASKED} | body
        assert asked.post(PATH, json=order, headers={"Idempotency-Key": secrets.token_hex(8)}).status_code == 422


@pytest.mark.parametrize("verified", [True, False])
def test_a_missed_deadline_of_any_request_is_counted_for_the_alert(asked: TestClient, verified: bool) -> None:
    post(asked, subject_id="ada", due_at="2026-02-01T00:00:00Z", verified=verified)
    assert "expunge_requests_overdue 1.0" in asked.get("/metrics").text


def test_every_item_of_a_batch_is_under_it(asked: TestClient) -> None:
    items = {"requests": [{"subject_id": "ada"}, {"subject_id": "bob", "regulation": "gdpr"}]}
    answer = asked.post(f"{PATH}/batch", json=items, headers={"Idempotency-Key": "1"}).json()
    assert [each["request"]["regulation"] for each in answer["outcomes"]] == ["ccpa", "gdpr"]
