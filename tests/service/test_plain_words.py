"""A certificate in plain words: derived from the statement alone, and under no guarantee more than it says."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.api.dependencies import Service
from service.audit.log import integrate
from service.audit.signed_note import Signer
from service.certificates.issue import issue_due
from service.certificates.plain_words import PlainWords, in_words, weakest
from tests.service.conftest import Login
from tests.service.test_certificates import carry_out
from tests.service.worlds import live_model
from unlearning.accounting.certificate import Claim, Constant, Guarantee, Reference

MARKS = {
    Guarantee.EXACT: "exactly what a training from the start",
    Guarantee.PROVED: "mathematical proof",
    Guarantee.CALIBRATED: "measured on other deletions, and not proved",
    Guarantee.ESTIMATED: "is an estimate. Nobody has proved it",
    Guarantee.NONE: "Nothing is claimed",
}
"""what only the sentence of this guarantee says"""
PLAIN = "whoever sees this version is right at most 3 times in 100 more often"


def claim_of(guarantee: Guarantee, **more: Any) -> dict[str, Any]:
    bounded = guarantee not in (Guarantee.NONE, Guarantee.EXACT)
    given = {
        "method": "newton",
        "guarantee": guarantee,
        "reference": Reference.RENORMALISED,
        "noise_std": 0.01 if bounded else 0.0 if guarantee is Guarantee.EXACT else None,
        "max_distance": 1e-5 if bounded else None,
        "delta": None if guarantee is Guarantee.NONE else 1e-5,
        "updates": 1 if bounded else 0,
        "spent": 1_000_001 if bounded else 0,
        "limit": 10**11 if bounded else 0 if guarantee is Guarantee.EXACT else None,
        "samples": 10,
        "people": 1,
        "assumptions": ("The objective is strongly convex.",),
        "constants": (Constant("L", 1.0, "measured on 3 seeds"),) if guarantee is Guarantee.ESTIMATED else (),
    }
    return Claim.of(**(given | more)).to_json()


def part(guarantee: Guarantee = Guarantee.PROVED, bound: bool = True, **more: Any) -> dict[str, Any]:
    plain = PLAIN if guarantee in (Guarantee.EXACT, Guarantee.PROVED) else None
    return {
        "model": "digits",
        "version": 3,
        "samples": 10,
        "claim": claim_of(guarantee),
        "from_this_version_on": {"in_plain_words": plain} if bound else None,
        "consumers": [],
    } | more


def statement(*parts: dict[str, Any], **facts: Any) -> dict[str, Any]:
    accepted = {"kind": "request.accepted", "body": json.dumps({"samples_named": facts.pop("samples_named", None)})}
    predicate = {
        "request": "0" * 32,
        "received_at": "2026-11-01T10:00:00.000000Z",
        "due_at": "2026-12-01T10:00:00.000000Z",
        "regulation": "uk-gdpr",
        "extended_at": None,
        "completed_at": "2026-11-21T10:00:00.000000Z",
        "models": list(parts),
        "together": None,
        "audit": {"entries": [accepted]},
    }
    return {"predicate": predicate | facts}


def text(words: PlainWords) -> str:
    return " ".join((*words.happened, *words.means, *words.relies_on))


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_each_guarantee_says_its_own_and_nothing_of_a_stronger_one(guarantee: Guarantee) -> None:
    words = in_words(statement(part(guarantee)))
    said = text(words)
    assert MARKS[guarantee] in said
    for other, mark in MARKS.items():
        assert other is guarantee or mark not in said, other
    assert (PLAIN in said) == (guarantee in (Guarantee.EXACT, Guarantee.PROVED))
    if guarantee not in (Guarantee.EXACT, Guarantee.PROVED):
        for claim in ("removed", "deleted", "erased", "gone", "proof", "guarantee", "at most"):
            assert claim not in said, claim


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_without_a_bound_no_number_is_given(guarantee: Guarantee) -> None:
    said = text(in_words(statement(part(guarantee, bound=False))))
    assert PLAIN not in said and "times in 100" not in said
    if guarantee in (Guarantee.EXACT, Guarantee.PROVED):
        assert "states no limit for all later versions" in said


def test_of_several_models_the_weakest_counts_and_one_without_a_bound_leaves_none() -> None:
    weak = part(Guarantee.NONE, model="faces")
    mixed = statement(part(Guarantee.PROVED), weak)
    assert weakest(mixed["predicate"]) is Guarantee.NONE
    assert "no limit" in " ".join(in_words(mixed).means) and PLAIN not in text(in_words(mixed))
    both = [part(Guarantee.PROVED), part(Guarantee.EXACT, model="faces")]
    assert PLAIN not in text(in_words(statement(*both))), "one model's bound is not that of both"
    bound = {"from_these_versions_on": {"in_plain_words": "both together: 5 in 100"}}
    assert "both together: 5 in 100" in text(in_words(statement(*both, together=bound)))
    assert PLAIN not in text(in_words(statement(*both, together={"from_these_versions_on": None})))


def test_a_day_and_a_deadline_are_those_of_the_statement() -> None:
    def first(**facts: Any) -> str:
        return in_words(statement(part(), **facts)).happened[0]

    assert first().endswith("completed on 21 November 2026, within the deadline of the UK GDPR (1 December 2026).")
    assert first(regulation=None).endswith("within the deadline (1 December 2026).")
    assert "after the deadline" in first(completed_at="2026-12-01T10:00:00.000001Z")
    assert "within the deadline" in first(completed_at="2026-12-01T10:00:00.000000Z")
    assert first(due_at=None).endswith("No legal deadline was named.")
    assert "extended on 20 November 2026" in first(extended_at="2026-11-20T10:00:00.000000Z")


def test_whose_samples_they_are_follows_from_the_log() -> None:
    assert "10 training samples of this person" in text(in_words(statement(part())))
    named = text(in_words(statement(part(samples=1), samples_named=1)))
    assert "1 training sample that the request named" in named and "this person" not in named
    assert "no training sample of this person was left" in text(in_words(statement(part(samples=0))))


def test_checked_tried_and_declared_are_counted_apart() -> None:
    lists = {"checked": ["a"], "tried": ["b", "c"], "declared": ["d", "e", "f"]}
    words = in_words(statement(part(claim=claim_of(Guarantee.PROVED) | lists)))
    checked, tried, declared, assumed = words.relies_on
    assert checked == "Checked by the service: 1 statement of the formal text."
    assert tried == "Only tried on a few samples: 2 statements of the formal text."
    assert "checked by nobody: 3 statements" in declared and "certificate is wrong" in declared
    assert assumed == "Assumed: 1 statement of the formal text."
    nothing = part(Guarantee.NONE, claim=claim_of(Guarantee.NONE) | {name: [] for name in (*lists, "assumptions")})
    assert in_words(statement(nothing)).relies_on == ()


def test_who_still_served_an_old_version_is_said() -> None:
    consumers = [{"name": "a", "version": 2, "status": "behind"}, {"name": "b", "version": 3, "status": "unknown"}]
    said = " ".join(in_words(statement(part(consumers=consumers))).not_said)
    assert "1 system still served an older version" in said and "1 system had not said lately" in said
    assert "still served" not in " ".join(in_words(statement(part())).not_said)


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_the_limits_are_said_under_every_guarantee(guarantee: Guarantee) -> None:
    said = " ".join(in_words(statement(part(guarantee))).not_said)
    for limit in ("every copy", "who left", "Other people", "backups", "right person"):
        assert limit in said


def test_a_model_that_ended_without_a_version_is_said_in_the_statements_own_words() -> None:
    ended = [{"model": "faces", "reason": "model_retired", "statement": "It is retired. Nothing is claimed about it."}]
    words = in_words(statement(part(), without_version=ended))
    assert words.happened[-1] == "faces: It is retired. Nothing is claimed about it."
    assert PLAIN not in text(words) and "states no limit for all later versions" in text(words)


def test_the_words_change_nothing_in_the_statement() -> None:
    given = statement(part())
    before = copy.deepcopy(given)
    in_words(given)
    assert given == before


def test_the_page_shows_the_plain_words_first_and_a_letter(login: Login, client: TestClient, service: Service) -> None:
    model = live_model(service)
    body, key = {"subject_id": "ada", "regulation": "gdpr", "case_id": "DSR-7"}, {"Idempotency-Key": "k"}
    request = client.post("/v1/deletion-requests", json=body, headers=key).json()["id"]
    carry_out(service, model, request)
    signer = Signer.of(service.settings)
    with service.database.write() as session:
        integrate(session, signer)
    assert issue_due(service.database, signer, service.pepper) == 1
    console = login()
    page = console.get(f"/console/requests/{request}/certificate").text
    places = [page.index(each) for each in ("In plain words", "2 training samples of this person", "Formal text")]
    assert places == sorted(places) and "within the deadline of the GDPR" in page and "What it does not say" in page
    letter = console.get(f"/console/requests/{request}/letter").text
    assert "DSR-7" in page and "Our reference: <strong>DSR-7</strong>" in letter
    assert "DSR-7" not in client.get(f"/v1/deletion-requests/{request}/certificate").text, "nor in the signed text"
    statement = client.get(f"/v1/deletion-requests/{request}/certificate").json()["payload"]
    assert b"DSR-7" not in base64.b64decode(statement)
    assert "2 training samples of this person" in letter and request in letter and "every copy" in letter
    assert login("models:read").get(f"/console/requests/{request}/letter").status_code == 403
    dossier = login().get("/console/dossier").text
    assert "This service stores no measured attacks" in dossier and "--recipe $EXPUNGE_RECIPES/digits" in dossier
    assert "1 request was received" in dossier and "proved" in dossier and request[:8] in dossier
