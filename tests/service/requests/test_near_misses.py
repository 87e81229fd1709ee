"""An id that nobody has, and that is written nearly as somebody's, finishes no request: a person decides."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge_service.access.api_keys import Scope
from expunge_service.api.dependencies import Service
from expunge_service.api.types import PersonalId
from expunge_service.api.views.history import letter_facts
from expunge_service.certificates.letters import letter
from expunge_service.cli.checks import examine
from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import person_number, subject_digest
from expunge_service.infra.tables import AuditEntry, DeletionRequest, Generation, SuppressionEntry, Task
from expunge_service.models.generations import open_generation
from expunge_service.requests.intake import Order, accept_all
from expunge_workers.scheduler import run
from tests.harness import spoiled_ids
from tests.service.worlds import live_model

PATH = "/v1/deletion-requests"
PEOPLE = {f"{number:06d}": [f"s{number}"] for number in range(17, 60)}
_VALID = TypeAdapter(PersonalId)


def post(client: TestClient, status: int = 202, **body: Any) -> Any:
    answer = client.post(PATH, json=body, headers={"Idempotency-Key": secrets.token_hex(8)})
    assert answer.status_code == status, answer.text
    return answer.json()


def step(client: TestClient, request: str, what: str, status: int = 200, **body: Any) -> Any:
    answer = client.post(f"{PATH}/{request}/{what}", json=body or None)
    assert answer.status_code == status, answer.text
    return answer.json()


def tasks(service: Service, request: str) -> list[str]:
    with service.database.read() as session:
        return list(session.scalars(select(Task.status).where(Task.request_id == request)))


def in_force(service: Service, request: str) -> int:
    mine = (SuppressionEntry.request_id == request, SuppressionEntry.lifted_at.is_(None))
    with service.database.read() as session:
        return session.scalar(select(func.count()).select_from(SuppressionEntry).where(*mine)) or 0


def audited(service: Service, request: str) -> dict[str, dict[str, Any]]:
    with service.database.read() as session:
        rows = session.execute(select(AuditEntry.kind, AuditEntry.body).where(AuditEntry.request_id == request))
        return {kind: json.loads(body) for kind, body in rows}


@pytest.mark.parametrize("text", ["17", "17.0", "1.7E+01", "'000017", "0000017", "ID 000017"])
def test_a_misspelled_id_waits_for_a_person_and_the_right_one_goes_on(
    client: TestClient, service: Service, text: str
) -> None:
    live_model(service, people=PEOPLE)
    made = post(client, subject_id=text, regulation="gdpr")
    assert (made["status"], made["reason"], made["models"]) == ("blocked", "near_miss", [])
    assert made["due_at"] and made["completed_at"] is None
    assert "nearly the same one: 1" in client.get(f"{PATH}/{made['id']}").json()["title"]
    assert in_force(service, made["id"]) == 0 and tasks(service, made["id"]) == []
    assert run.settle_unmatched(service.database) == 0
    refused = step(client, made["id"], "same-person", 409, subject_id="000018")
    assert refused["code"] == "not_near" and "000018" not in json.dumps(refused)
    done = step(client, made["id"], "same-person", subject_id="000017")
    assert (done["status"], [part["model"] for part in done["models"]]) == ("queued", ["digits"])
    assert in_force(service, made["id"]) == 2 and tasks(service, made["id"]) == ["queued"]
    entry = audited(service, made["id"])["request.spelling_confirmed"]
    assert len(entry["commitment"]) == 64 and "000017" not in json.dumps(entry)
    assert step(client, made["id"], "other-person", 409)["code"] == "not_near_miss"


def test_another_person_ends_the_request_and_is_not_asked_about_again(client: TestClient, service: Service) -> None:
    live_model(service, people=PEOPLE)
    made = post(client, subject_id="17")
    done = step(client, made["id"], "other-person")
    assert (done["status"], done["reason"]) == ("completed", "no_match")
    assert "other people" in done["title"] and "request.spelling_denied" in audited(service, made["id"])
    again = post(client, subject_id="17")
    assert (again["status"], again["reason"]) == ("completed", "no_match")


@pytest.mark.parametrize("text", ["nan", "#N/A", "[object Object]", "2-Jan", "1.7E+05"])
def test_a_damaged_id_waits(client: TestClient, service: Service, text: str) -> None:
    live_model(service, people=PEOPLE)
    made = post(client, subject_id=text)
    assert (made["status"], made["reason"]) == ("blocked", "near_miss") and "looks damaged" in made["title"]
    assert "looks damaged" in made["note"]
    assert step(client, made["id"], "same-person", 409, subject_id="000017")["code"] == "not_near"
    assert step(client, made["id"], "other-person")["reason"] == "no_match"


def test_an_id_of_another_kind_waits(client: TestClient, service: Service) -> None:
    live_model(service, people=PEOPLE)
    made = post(client, subject_id="otto@mail.org")
    assert (made["status"], made["reason"]) == ("blocked", "near_miss") and "No id of the models" in made["title"]
    assert post(client, subject_id="999999")["reason"] == "no_match", "this one looks as the others do"
    assert post(client, subject_id="9999999")["reason"] == "no_match", "numbers grow by a digit"


def test_an_exact_match_of_any_kind_is_no_near_miss(client: TestClient, service: Service) -> None:
    live_model(service, people=PEOPLE)
    assert post(client, subject_id="000017")["status"] == "queued"
    with service.database.write() as session:
        session.execute(Task.__table__.update().values(status="completed", samples=1, version_id="v"))
    assert post(client, subject_ids=["000017", "elsewhere-5"])["status"] == "queued", "one of the ids is known"


def test_two_people_whose_ids_differ_in_case_are_asked_about(client: TestClient, service: Service) -> None:
    model = live_model(service, people={"aB3": ["1"], "Ab3": ["2"], "cd4": ["3"]})
    made = post(client, subject_id="aB3")
    assert (made["status"], made["reason"]) == ("blocked", "near_miss")
    done = step(client, made["id"], "other-person")
    assert done["status"] == "queued", "the id as it is written is known"
    assert post(client, subject_id="cd4")["status"] == "queued"
    answer = client.patch(f"/v1/models/{model.name}/policy", json={"twins": "ignore"})
    assert answer.status_code == 200, answer.text
    assert post(client, subject_id="Ab3")["status"] == "queued"


def test_each_of_several_ids_is_asked_about(client: TestClient, service: Service) -> None:
    live_model(service, people=PEOPLE)
    made = post(client, subject_ids=["000018", "17"])
    assert (made["status"], made["reason"]) == ("blocked", "near_miss")
    done = step(client, made["id"], "same-person", subject_id="000017")
    assert done["status"] == "queued" and in_force(service, made["id"]) == 3


def test_an_unverified_request_is_asked_about_once_it_is_verified(client: TestClient, service: Service) -> None:
    live_model(service, people=PEOPLE)
    made = post(client, subject_id="17", verified=False)
    assert made["reason"] == "unverified"
    done = step(client, made["id"], "verify")
    assert (done["status"], done["reason"]) == ("blocked", "near_miss") and in_force(service, made["id"]) == 0
    assert step(client, made["id"], "same-person", subject_id="000017")["status"] == "queued"


def test_a_near_miss_can_be_cancelled_and_not_retried(client: TestClient, service: Service) -> None:
    live_model(service, people=PEOPLE)
    made = post(client, subject_id="17")
    assert step(client, made["id"], "retry", 409)["code"] == "near_miss"
    answer = client.delete(f"{PATH}/{made['id']}")
    assert answer.status_code == 200 and answer.json()["status"] == "cancelled"
    assert in_force(service, made["id"]) == 0 and tasks(service, made["id"]) == []
    for what, body in (("same-person", {"subject_id": "000017"}), ("other-person", {})):
        assert step(client, made["id"], what, 409, **body)["code"] == "not_near_miss"
    assert client.delete(f"{PATH}/{made['id']}").json()["status"] == "cancelled", "once more changes nothing"
    assert list(audited(service, made["id"])) == ["request.accepted", "request.blocked", "request.cancelled"]
    assert post(client, subject_id="17")["reason"] == "near_miss", "a withdrawn question decides nothing"


def test_a_question_about_a_hold_can_be_cancelled(client: TestClient, service: Service) -> None:
    placed(client, "17.0")
    live_model(service, people=PEOPLE)
    made = post(client, subject_id="000017")
    assert client.delete(f"{PATH}/{made['id']}").json()["status"] == "cancelled"
    assert in_force(service, made["id"]) == 0 and tasks(service, made["id"]) == []


def test_a_generation_of_release_0_2_is_compared_exactly_and_says_so(client: TestClient, service: Service) -> None:
    live_model(service, people=PEOPLE, spellings=False)
    made = post(client, subject_id="17")
    assert (made["status"], made["reason"]) == ("completed", "no_match") and "exactly only" in made["title"]
    assert "exactly only" in post(client, sample_ids=["unknown"])["title"]


def test_a_writing_key_cannot_tell_near_from_unknown(api: TestClient, service: Service, key_of: Any) -> None:
    live_model(service, people=PEOPLE)
    headers = key_of(Scope.DELETIONS_WRITE) | {"Idempotency-Key": ""}

    def receipt(**body: Any) -> Any:
        answer = api.post(PATH, json=body, headers=headers | {"Idempotency-Key": secrets.token_hex(8)})
        assert answer.status_code == 202
        return {name: value for name, value in answer.json().items() if name in ("status", "due_at", "note")} | {
            "fields": sorted(answer.json())
        }

    near, exact, unknown = receipt(subject_id="00018"), receipt(subject_id="000018"), receipt(subject_id="999999")
    assert exact == unknown == near | {"note": None}
    assert receipt(subject_id="0000018") == unknown and receipt(subject_id="nan")["status"] == "queued"


def test_who_may_know_how_many_are_near(api: TestClient, service: Service, key_of: Any) -> None:
    live_model(service, people=PEOPLE)
    api.headers.update(key_of())
    made = post(api, subject_id="17")

    def title(*scopes: Scope) -> str:
        answer = api.get(f"{PATH}/{made['id']}", headers=key_of(*scopes))
        return str(answer.json()["title"])

    silent = title(Scope.DELETIONS_READ)
    assert silent == title(Scope.DELETIONS_READ, Scope.PEOPLE_SEARCH) and "1" not in silent
    told = title(Scope.DELETIONS_READ, Scope.PEOPLE_SEARCH, Scope.DELETIONS_DECIDE)
    assert "nearly the same one: 1" in told and "leading zeros" in told


def test_four_eyes_cover_both_decisions(client: TestClient, service: Service, key_of: Any) -> None:
    object.__setattr__(service, "settings", service.settings.model_copy(update={"four_eyes": "decide"}))
    live_model(service, people=PEOPLE)
    made = post(client, subject_id="17")
    other = key_of()
    assert step(client, made["id"], "same-person", 409, subject_id="000017")["code"] == "awaits_another_person"
    assert step(client, made["id"], "same-person", 409, subject_id="000017")["code"] == "awaits_another_person"
    second = client.post(f"{PATH}/{made['id']}/same-person", json={"subject_id": "000018"}, headers=other)
    assert second.json()["code"] == "awaits_another_person", "another id is another decision"
    second = client.post(f"{PATH}/{made['id']}/same-person", json={"subject_id": "000017"}, headers=other)
    assert second.status_code == 200, second.text


def test_a_hold_on_a_misspelled_id_is_asked_about(client: TestClient, service: Service) -> None:
    live_model(service, people=PEOPLE)
    body = {"subject_id": "17", "reason": "case 7"}
    refused = client.post("/v1/holds", json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "near_miss")
    assert "nearly the same one: 1" in refused.json()["detail"]
    assert client.get("/v1/holds").json()["data"] == []
    assert client.post("/v1/holds", json=body | {"confirmed": True}).status_code == 201
    assert client.post("/v1/holds", json=body | {"subject_id": "000017"}).status_code == 201


def placed(client: TestClient, subject: str) -> str:
    answer = client.post("/v1/holds", json={"subject_id": subject, "reason": "case 7"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_a_deletion_of_a_person_whose_hold_is_written_nearly_so_waits(
    client: TestClient, service: Service, key_of: Any
) -> None:
    """The hold came before the model, so nobody could compare it: it protects nobody."""
    placed(client, "17.0")
    live_model(service, people=PEOPLE)
    made = post(client, subject_id="000017")
    assert (made["status"], made["reason"], made["models"]) == ("blocked", "near_miss", [])
    title = client.get(f"{PATH}/{made['id']}").json()["title"]
    assert "legal hold is on one that differs in leading zeros" in title and tasks(service, made["id"]) == []
    reader = client.get(f"{PATH}/{made['id']}", headers=key_of(Scope.DELETIONS_READ)).json()["title"]
    assert "hold" not in reader, "it would tell of another id"
    refused = step(client, made["id"], "same-person", 409, subject_id="17.0")
    assert refused["code"] == "not_near" and "legal hold" in refused["detail"]
    placed(client, "000017")
    done = step(client, made["id"], "other-person")
    assert (done["status"], [part["model"] for part in done["models"]]) == ("queued", ["digits"])
    again = post(client, subject_id="000017")
    assert again["status"] == "queued", "nobody is asked twice about the same hold"


def test_a_hold_of_somebody_else_or_that_is_lifted_asks_nothing(client: TestClient, service: Service) -> None:
    gone = placed(client, "18.0")
    assert client.delete(f"/v1/holds/{gone}").status_code == 200
    placed(client, "000019")
    live_model(service, people=PEOPLE | {"AB-1": ["a"], "AB-01": ["b"]})
    placed(client, "AB-01")
    for subject in ("000018", "000019", "AB-1"):
        assert post(client, subject_id=subject)["status"] == "queued", subject
    assert post(client, subject_id="999999")["reason"] == "no_match"


def test_a_hold_nearly_on_the_right_person_is_asked_about_after_the_spelling(
    client: TestClient, service: Service
) -> None:
    placed(client, "17.0")
    live_model(service, people=PEOPLE)
    made = post(client, subject_id="17")
    still = step(client, made["id"], "same-person", subject_id="000017")
    assert (still["status"], still["reason"], still["models"]) == ("blocked", "near_miss", [])
    assert in_force(service, made["id"]) == 0 and tasks(service, made["id"]) == []
    assert step(client, made["id"], "other-person")["status"] == "queued"


def test_a_hold_on_a_misspelled_id_is_shown_in_a_search_and_hinders_no_right_hold(
    client: TestClient, service: Service
) -> None:
    placed(client, "17.0")
    live_model(service, people=PEOPLE)
    for path in ("search", "estimate"):
        assert "legal hold" in client.post(f"{PATH}/{path}", json={"subject_id": "000017"}).json()["near"]
    placed(client, "000017")


def test_a_search_and_a_rehearsal_say_that_somebody_is_written_nearly_so(
    client: TestClient, service: Service, key_of: Any
) -> None:
    live_model(service, people=PEOPLE)
    for path in ("search", "estimate"):
        near = client.post(f"{PATH}/{path}", json={"subject_id": "17"}).json()
        assert "nearly the same one: 1" in near["near"] and not near["models"], near
        assert client.post(f"{PATH}/{path}", json={"subject_id": "000017"}).json()["near"] is None
        seeker = key_of(Scope.PEOPLE_SEARCH, Scope.DELETIONS_READ)
        assert client.post(f"{PATH}/{path}", json={"subject_id": "17"}, headers=seeker).json()["near"] is None


def test_an_order_that_expects_another_number_of_samples_waits(client: TestClient, service: Service) -> None:
    live_model(service, people={"17": ["a", "b"], "18": ["c"]})
    assert post(client, subject_id="17", expected_samples=2)["status"] == "queued"
    made = post(client, subject_id="18", expected_samples=2)
    assert (made["status"], made["reason"]) == ("blocked", "near_miss") and "another number" in made["title"]
    assert step(client, made["id"], "other-person")["status"] == "queued"
    assert post(client, subject_id="99", expected_samples=1)["status"] == "blocked"
    assert post(client, 422, sample_ids=["a"], expected_samples=1)["code"] == "not_counted"


def letter_about(service: Service, request: str) -> str:
    with service.database.read() as session:
        written = letter(letter_facts(session, session.get_one(DeletionRequest, request)))
    assert written is not None
    return " ".join(text for _, text in written.paragraphs)


@pytest.mark.parametrize("models", [None, ["digits"]])
def test_a_letter_says_how_the_id_was_compared(client: TestClient, service: Service, models: list[str] | None) -> None:
    live_model(service, people=PEOPLE)
    named = {} if models is None else {"models": models}
    made = post(client, subject_id="17", **named)
    step(client, made["id"], "other-person")
    assert "looked for other spellings, too; those that we found belong" in letter_about(service, made["id"])
    unknown = letter_about(service, post(client, subject_id="999999", **named)["id"])
    assert "We looked for other spellings, too." in unknown
    samples = letter_about(service, post(client, sample_ids=["unknown"], **named)["id"])
    assert "We looked for no other spellings." in samples
    damaged = post(client, subject_id="nan", **named)
    step(client, damaged["id"], "other-person")
    assert "We looked for other spellings, too." in letter_about(service, damaged["id"]), "nobody was near"


def test_a_letter_promises_no_spellings_where_a_generation_has_none(client: TestClient, service: Service) -> None:
    live_model(service, people=PEOPLE, spellings=False)
    assert "We looked for no other spellings." in letter_about(service, post(client, subject_id="17")["id"])
    damaged = post(client, subject_id="nan")
    step(client, damaged["id"], "other-person")
    assert "We looked for no other spellings." in letter_about(service, damaged["id"])
    old = post(client, subject_id="18")["id"]
    with service.database.write() as session:  # as release 0.2 wrote it
        session.get_one(DeletionRequest, old).facts = {"no_match": {"searched": 1}}
    assert "spellings" not in letter_about(service, old)


def live_models(service: Service, count: int, seed: int) -> dict[str, list[str]]:
    """A model of so many people for each shape of ids; return the ids."""
    ids = {shape: spoiled_ids.people(shape, count, seed) for shape in spoiled_ids.SHAPES}
    for shape, members in ids.items():
        live_model(service, name=shape, people={each: [f"{shape}-{each}"] for each in members})
    return ids


def valid(text: str) -> str | None:
    try:
        return str(_VALID.validate_python(text))
    except ValidationError:
        return None


@pytest.mark.both_engines
def test_a_thousand_spoiled_ids_finish_no_request_and_reach_no_stranger(service: Service) -> None:
    seed = 20_261_127
    arrived = [
        each for members in live_models(service, 200, seed).values() for each in spoiled_ids.spoiled(members, seed, 200)
    ]
    read = [(each, text) for each in arrived if (text := valid(each.text)) is not None]
    assert len(arrived) == 1000 and len({each.kind for each in arrived}) == 20
    outcomes = Counter({"refused": len(arrived) - len(read)})
    with service.database.write() as session:
        orders = [Order(subject_id=text) for _, text in read]
        for (each, _), accepted in zip(read, accept_all(session, service.pepper, "default", orders), strict=True):
            outcomes[outcome(session, service, each, accepted.request.id)] += 1
    assert outcomes["silent"] == outcomes["wrong"] == 0 and sum(outcomes.values()) == 1000, outcomes
    assert outcomes["right person near"] > 600, outcomes


def outcome(session: Session, service: Service, each: spoiled_ids.Spoiled, request_id: str) -> str:
    """What becomes of a request with a spoiled id: who is near, or silent or wrong where no person is asked."""
    request = session.get_one(DeletionRequest, request_id)
    right = subject_digest(service.pepper, "default", each.right)
    if request.near is None:
        if request.subject_digest == right:
            return "right person"
        return "silent" if request.reason == "no_match" else "wrong"
    if not request.near:
        return "damaged or unusual"
    return "right person near" if person_number(right) in request.near else "somebody else near"


def test_strangers_are_called_near_in_two_of_a_thousand_at_most(service: Service) -> None:
    members = live_models(service, 200, 5)
    asked = [each for shape, ids in members.items() for each in spoiled_ids.strangers(shape, ids, 200, 6)]
    with service.database.write() as session:
        orders = [Order(subject_id=text) for text in asked]
        accepted = accept_all(session, service.pepper, "default", orders)
        near = sum(bool(each.request.near) for each in accepted)
    assert len(asked) == 1000 and near <= 0.002 * len(asked), near


def rehearsed(client: TestClient, decisions: list[tuple[str, str]], **more: Any) -> list[Any]:
    """What a rehearsal says of each: whether the person is the only one near, or the code of the problem."""
    body = {"decisions": [{"request": request, "subject_id": right} for request, right in decisions]}
    answer = client.post(f"{PATH}/same-person/rehearse", json=body, **more)
    assert answer.status_code == 200, answer.text
    return [(each["problem"] or {}).get("code", each["only"]) for each in answer.json()["outcomes"]]


def test_a_rehearsal_of_same_person_says_what_it_would_make_of_each_and_decides_nothing(
    client: TestClient, service: Service, key_of: Any
) -> None:
    placed(client, "20.0")
    live_model(service, people=PEOPLE | {"AB-7": ["a"], "AB-07": ["b"]})
    near, several, held, damaged = (post(client, subject_id=text)["id"] for text in ("17", "AB-007", "000020", "nan"))
    exact = post(client, subject_id="000018")["id"]
    decisions = [(near, "000017"), (near, "000018"), (several, "AB-7"), (several, "AB-007"), (held, "20.0")]
    decisions += [(damaged, "000017"), (exact, "000018"), ("0" * 32, "000017")]
    expected = [
        True,
        "not_near",
        False,
        "not_near",
        "not_near",
        "not_near",
        "not_near_miss",
        "deletion_request_not_found",
    ]
    before = {request: audited(service, request) for request, _ in decisions}
    assert rehearsed(client, decisions) == expected
    assert rehearsed(client, [(near, "000017")], headers=key_of(tenant_id="other")) == ["deletion_request_not_found"]
    assert {request: audited(service, request) for request, _ in decisions} == before
    assert client.get(f"{PATH}/{near}").json()["reason"] == "near_miss" and tasks(service, near) == []
    assert step(client, near, "same-person", subject_id="000017")["status"] == "queued"


def test_a_wrong_id_counts_as_a_search_and_a_right_one_does_not(client: TestClient, service: Service) -> None:
    """A spoiled column is a thousand right ids; a key may search for sixty people a minute."""
    service.searches.burst, service.searches.per_second = 3, 0.001
    live_model(service, people=PEOPLE)
    made = [post(client, subject_id=str(number))["id"] for number in range(17, 25)]
    right = [(request, f"{number:06d}") for number, request in enumerate(made, 17)]
    assert rehearsed(client, right) == rehearsed(client, right) == [True] * 8
    for request, text in right[:6]:
        step(client, request, "same-person", subject_id=text)
    assert rehearsed(client, [(made[6], "000050"), (made[7], "000051")]) == ["not_near"] * 2
    assert step(client, made[7], "same-person", 409, subject_id="000052")["code"] == "not_near"
    assert step(client, made[7], "same-person", 429, subject_id="000024")["code"] == "too_many_searches"
    body = {"decisions": [{"request": made[7], "subject_id": "000024"}]}
    assert client.post(f"{PATH}/same-person/rehearse", json=body).status_code == 429


def test_the_operator_is_told_of_which_models_ids_are_compared_with_less(client: TestClient, service: Service) -> None:
    live_model(service, name="all", people=PEOPLE)
    live_model(service, name="old", people=PEOPLE, spellings=False)
    live_model(service, name="odd", people={f"{'-' * number}x": [str(number)] for number in range(40)})
    compared = {name: client.get(f"/v1/models/{name}").json()["ids_compared"] for name in ("all", "old", "odd")}
    assert compared == {"all": "by_forms_and_looks", "old": "exactly", "odd": "by_forms"}
    findings = {each.name: each for each in examine(service.settings) if each.name.startswith("ids of ")}
    assert findings.keys() == {"ids of odd", "ids of old"} and all(each.well for each in findings.values())
    assert "until its next training" in findings["ids of old"].what
    assert "no_match" in findings["ids of odd"].what
    assert post(client, subject_id="otto@mail.org")["reason"] == "no_match", "one model's looks tell nothing"


def candidate(service: Service) -> None:
    """A retrain of the model began, whose people are not known yet."""
    with service.database.write() as session:
        served = session.scalars(select(Generation)).one()
        copied = {"tenant_id", "model_id", "method", "guarantee", "budget", "budget_cost", "noise_std", "max_distance"}
        facts = {name: getattr(served, name) for name in copied}
        open_generation(session, Generation(**facts, status="candidate", created_at=now(session)))


def test_a_hold_nearly_on_somebody_who_asked_while_a_retrain_runs_is_asked_about(
    client: TestClient, service: Service
) -> None:
    """The retrain may hold the person; nobody could compare the hold with them before they are deleted."""
    live_model(service, people=PEOPLE)
    earlier, body = post(client, subject_id="700001"), {"reason": "case 7"}
    assert earlier["reason"] == "no_match"
    candidate(service)
    assert post(client, subject_id="000700")["reason"] == "no_match"
    refused = client.post("/v1/holds", json=body | {"subject_id": "0000700"})
    assert (refused.status_code, refused.json()["code"]) == (409, "near_miss"), refused.text
    assert "leading zeros" in refused.json()["detail"] and "000700" not in refused.text
    for right in ({"subject_id": "000700"}, {"subject_id": "0000700", "confirmed": True}, {"subject_id": "0700001"}):
        assert client.post("/v1/holds", json=body | right).status_code == 201, right


def test_a_request_nearly_under_a_hold_waits_though_no_model_knows_either(client: TestClient, service: Service) -> None:
    placed(client, "700.0")
    live_model(service, people=PEOPLE)
    made = post(client, subject_id="000700")
    assert (made["status"], made["reason"]) == ("blocked", "near_miss")
    assert "legal hold" in client.get(f"{PATH}/{made['id']}").json()["title"]
    assert step(client, made["id"], "other-person")["reason"] == "no_match"
