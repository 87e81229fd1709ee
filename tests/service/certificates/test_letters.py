"""Letters to the person: one page each, for every ended or extended request, and no more than the certificate says."""

from __future__ import annotations

import re
import secrets
import textwrap
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from expunge_service.api.dependencies import Service
from expunge_service.certificates.letters import LONGEST, Facts, Kind, PersonalLetter, letter
from expunge_service.certificates.outcome import ModelOutcome
from expunge_service.certificates.plain_words import in_words
from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import Generation, HoldoutPerson, Model
from expunge_service.requests.accounts import Account
from expunge_service.requests.reasons import Reason
from expunge_service.requests.states import Status, Suppress
from tests.service.certificates.test_plain_words import both, exact, part, statement, walled
from tests.service.conftest import Login
from tests.service.worlds import live_model
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.world import Enclosure

RECEIVED, DUE = datetime(2026, 11, 23, 10, tzinfo=UTC), datetime(2026, 12, 23, 10, tzinfo=UTC)
LATER = datetime(2027, 2, 23, 10, tzinfo=UTC)
OPEN = Facts(
    status=Status.QUEUED,
    reason=None,
    regulation="gdpr",
    received=RECEIVED,
    due=DUE,
    first_due=None,
    completed=None,
    extended=False,
    rejection=None,
    limited_to=None,
    of_samples=False,
    kept_out=Suppress.EVERYWHERE,
    parts=(),
    accounts=(Account(deleted=False, before=(), in_holdout=False),),
    records=0,
    searched=None,
    compared=None,
    preparing=False,
    holdouts=(),
    overwritten=False,
    unnamed_holdouts=(),
    statement=None,
)
DONE = replace(OPEN, status=Status.COMPLETED, completed=datetime(2026, 11, 24, 9, tzinfo=UTC))
NO_MATCH = replace(DONE, reason=Reason.NO_MATCH, searched=3)
HELD_OUT = replace(DONE, reason=Reason.IN_HOLDOUT, holdouts=("churn",), overwritten=True)
REJECTED = replace(OPEN, status=Status.REJECTED, rejection="the copy of your passport shows another name")


def deleted(*parts: dict[str, Any], **facts: Any) -> Facts:
    done = [ModelOutcome(each["model"], None, each["version"], each["samples"], each["claim"]) for each in parts]
    accounts = (Account(deleted=True, before=(), in_holdout=False),)
    records = parts[0]["samples"]  # the same in each model
    return replace(DONE, parts=done, accounts=accounts, records=records, statement=statement(*parts, **facts))


LETTERS: dict[str, tuple[Facts, Kind]] = {
    "proved": (deleted(part()), Kind.DELETED),
    "exact": (deleted(exact(deterministic=True)), Kind.DELETED),
    "exact on the operator's word": (deleted(exact(operators_word=True)), Kind.DELETED),
    "exact with later limits": (
        deleted(exact() | {"from_this_version_on": {"guarantee": "proved", "mu": 0.2}}),
        Kind.DELETED,
    ),
    "made behind walls": (deleted(walled(deterministic=True)), Kind.DELETED),
    "made behind weaker walls": (deleted(walled(Enclosure.LANDLOCK)), Kind.DELETED),
    "made behind walls, with a reader of our own": (deleted(walled(own_readers=1)), Kind.DELETED),
    "made behind walls, in two ways": (deleted(walled(repeats=False)), Kind.DELETED),
    "proved behind walls": (deleted(walled(guarantee=Guarantee.PROVED)), Kind.DELETED),
    "proved behind weaker walls": (deleted(walled(Enclosure.NONE, Guarantee.PROVED)), Kind.DELETED),
    "samples, made behind walls": (replace(deleted(walled(own_readers=1)), of_samples=True), Kind.DELETED),
    "none": (deleted(part(Guarantee.NONE)), Kind.CHANGED),
    "calibrated": (deleted(part(Guarantee.CALIBRATED)), Kind.CHANGED),
    "several models": (
        deleted(*(part(model=f"a-rather-long-name-{at}") for at in range(30)), together=both(0.01, 2.0)),
        Kind.DELETED,
    ),
    "proved, none and exact": (
        deleted(part(), part(Guarantee.NONE, model="faces"), exact(operators_word=True) | {"model": "voices"}),
        Kind.CHANGED,
    ),
    "without a certificate yet": (replace(deleted(part()), statement=None), Kind.DELETED),
    "samples": (replace(deleted(part()), of_samples=True), Kind.DELETED),
    "samples, exact": (replace(deleted(exact(deterministic=True)), of_samples=True), Kind.DELETED),
    "samples, proved, none and exact": (
        replace(
            deleted(part(), part(Guarantee.NONE, model="faces"), exact(operators_word=True) | {"model": "voices"}),
            of_samples=True,
        ),
        Kind.CHANGED,
    ),
    "samples, without a certificate yet": (replace(deleted(part()), of_samples=True, statement=None), Kind.DELETED),
    "samples not found": (replace(NO_MATCH, of_samples=True), Kind.ENDED),
    "samples not in the named models": (
        replace(DONE, reason=Reason.NOT_IN_NAMED_MODELS, limited_to=("digits",), searched=1, of_samples=True),
        Kind.ENDED,
    ),
    "some models": (replace(deleted(part()), limited_to=("digits",)), Kind.DELETED),
    "not in our data": (NO_MATCH, Kind.NOT_IN_OUR_DATA),
    "not in the named models": (
        replace(DONE, reason=Reason.NOT_IN_NAMED_MODELS, limited_to=("digits",), searched=1),
        Kind.ENDED,
    ),
    "searched while a model was prepared": (replace(NO_MATCH, preparing=True), Kind.ENDED),
    "holdout": (HELD_OUT, Kind.HOLDOUT),
    "holdout that a training saw": (replace(HELD_OUT, overwritten=False), Kind.ENDED),
    "deleted before": (replace(DONE, reason=Reason.ALREADY_DELETED), Kind.ENDED),
    "model retired": (replace(DONE, parts=(ModelOutcome("churn", Reason.MODEL_RETIRED, None, 0),)), Kind.ENDED),
    "rejected": (REJECTED, Kind.REJECTED),
    "cancelled": (replace(OPEN, status=Status.CANCELLED), Kind.ENDED),
    "extended": (replace(OPEN, extended=True, first_due=DUE, due=LATER), Kind.EXTENDED),
}


def written(facts: Facts) -> PersonalLetter:
    found = letter(facts)
    assert found is not None
    return found


def text(facts: Facts) -> str:
    said = written(facts)
    return " ".join((said.headline, *(f"{lead}. {words}" if lead else words for lead, words in said.paragraphs)))


LINE, LINES = 76, 34
"""characters of a line of A4 with margins of 2 cm at 16 px, and lines that are left beside the blanks to fill in"""


@pytest.mark.parametrize("name", LETTERS)
def test_each_letter_is_one_page_without_pronouns_for_people(name: str) -> None:
    facts, kind = LETTERS[name]
    said = written(facts)
    assert said.kind is kind
    words = text(facts)
    assert len(words.split()) <= LONGEST, len(words.split())
    lines = sum(len(textwrap.wrap(f"{lead}. {each}", LINE)) + 1 for lead, each in said.paragraphs)
    assert lines <= LINES, lines
    assert not re.search(r"\b(her|hers|she|whoever|nobody)\b|[{}]|None|  ", words, re.IGNORECASE), words
    assert "complain to the data protection authority [ ]" in words


def test_an_open_request_has_no_letter() -> None:
    assert letter(OPEN) is None and letter(replace(OPEN, status=Status.BLOCKED, reason=Reason.LEGAL_HOLD)) is None


def test_a_proved_deletion_names_records_versions_odds_and_limits() -> None:
    said = text(LETTERS["proved"][0])
    for sentence in (
        "You asked us on 23 November 2026. We finished on 24 November 2026; the law gave us until",
        'We removed 10 records about you from the model "digits". Version 3 is the first without them.',
        "We keep a coded form of your identifier, so that later training leaves your data out.",
        "We corrected the model instead of training it again. A mathematical proof limits what is left.",
        "That guess can be right at most 50.1 times in 100 with the new version, and at most 60.6 however much we",
        "Versions before version 3 may have been made with your data.",
        "Ask us for the signed certificate 00000000 and your personal code",
    ):
        assert sentence in said, sentence


def test_a_deadline_of_the_controllers_own_is_no_law() -> None:
    said = text(replace(NO_MATCH, regulation=None, limited_to=["churn"]))
    assert "We finished on 24 November 2026; our own deadline was 23 December 2026." in said and "law" not in said


@pytest.mark.parametrize("regulation", ["lgpd", "pipeda"])
def test_no_term_is_claimed_of_a_law_that_gives_none_for_a_deletion(regulation: str) -> None:
    """A2c: "The law gave us until 23 December 2026 (LGPD)". The 15 days are the term of another article, for access."""
    done = text(replace(deleted(part()), regulation=regulation))
    extended = text(replace(LETTERS["extended"][0], regulation=regulation))
    for said in (done, extended):
        assert "The law" not in said and "the law" not in said and regulation.upper() not in said
        assert "our own deadline was 23 December 2026." in said or "Our own deadline was 23 December 2026." in said
    assert "until 23 December 2026 (GDPR)" in text(deleted(part()))
    assert (
        "the organisation's own deadline (1 December 2026)"
        in in_words(statement(part(), regulation=regulation)).happened[0]
    )


def test_an_exact_deletion_says_exactly_only_deterministic_and_a_coin_toss_only_where_it_was_tried() -> None:
    bits, plain = text(LETTERS["exact"][0]), text(deleted(exact()))
    assert "is exactly the model that we would have" in bits and "is the model that we would have" in plain
    for said in (bits, plain):
        assert "no say in which deletions we were asked for, can do no better than a coin toss" in said
    word = text(LETTERS["exact on the operator's word"][0])
    assert "coin toss" not in word and "our word" in word
    assert "at most 50 times in 100 with the new version, and at most 58" in text(LETTERS["exact with later limits"][0])


def test_what_was_made_behind_walls_says_what_they_showed_and_for_what_we_vouch() -> None:
    vouched = (
        "We vouch for the program itself and for 2 further files. Your data were found by the identifiers that you and "
        "we know. Our word, not checked: No column of the tables mixes several people."
    )
    made = "The new version was made from the data of the others alone; "
    shown = text(LETTERS["made behind walls"][0])
    assert f"What this relies on. {made}nothing else could be opened. {vouched}" in shown
    assert "is exactly the model that we would have" in shown and "coin toss" in shown
    weaker = text(LETTERS["made behind weaker walls"][0])
    assert f"{made}that nothing else was opened is our word. {vouched}" in weaker
    assert "That this training reads nothing else is our word, so we give no number." in weaker
    reader = text(LETTERS["made behind walls, with a reader of our own"][0])
    read = "One source is read by our own program before your rows are left out; that it mixes no people is our word."
    assert f"{made}nothing else could be opened. {read} {vouched}" in reader
    assert 'Our own program reads a source of the model "digits", so we give no number.' in reader
    proved = text(LETTERS["proved behind walls"][0])
    assert f"What this relies on. {vouched}" in proved and made not in proved
    weaker = text(LETTERS["proved behind weaker walls"][0])
    assert f'That the training of the model "digits" opened nothing else is our word. {vouched}' in weaker
    nothing = text(deleted(walled(guarantee=Guarantee.NONE, public_files=())))
    assert "vouch" not in nothing and made not in nothing
    assert "We vouch for the program itself. Your data" in text(deleted(walled(public_files=())))


def test_where_two_worlds_differ_the_version_is_one_of_those_that_there_may_be() -> None:
    said = text(LETTERS["made behind walls, in two ways"][0])
    assert "The new version is a model that this training gives without your data; two runs of it differ." in said
    assert "that we would have" not in said and "coin toss" in said


@pytest.mark.parametrize(
    "name",
    ["none", "calibrated", "made behind weaker walls", "exact on the operator's word", "without a certificate yet"],
)
def test_without_a_bound_there_is_no_number(name: str) -> None:
    said = text(LETTERS[name][0])
    assert "times in 100" not in said and "coin toss" not in said and "proof" not in said


def test_not_in_our_data_needs_a_search_of_every_model_and_none_being_prepared() -> None:
    headline = "We did not find your identifier in our trained models."
    assert written(NO_MATCH).headline == headline
    assert "behind the 3 models in our register that day" in text(NO_MATCH)
    for less in (
        replace(NO_MATCH, preparing=True),
        replace(NO_MATCH, searched=None),
        replace(NO_MATCH, limited_to=("digits",)),
        replace(NO_MATCH, parts=(ModelOutcome("digits", Reason.NO_MATCH, None, 0),)),
    ):
        assert headline not in text(less)
    named = text(LETTERS["not in the named models"][0])
    assert 'behind the model "digits" only' in named and "Other models were not searched." in named


def test_no_training_is_ruled_out_only_where_each_had_overwritten_the_holdout() -> None:
    assert "No model was trained on your data." in text(HELD_OUT)
    said = text(replace(HELD_OUT, overwritten=False))
    assert "No model was trained" not in said and "did not check whether they influenced a training" in said


@pytest.mark.parametrize("name", [name for name in LETTERS if name.startswith("samples")])
def test_a_letter_about_samples_says_nothing_of_the_person(name: str) -> None:
    """The person may have other records, which were not looked for."""
    said = text(LETTERS[name][0])
    assert not re.search("your data|identifier|about you from|you left", said), said
    assert "the records that you named" in said or "records that you named from" in said


def test_the_letter_says_that_the_person_is_left_out_later_only_where_that_is_in_force() -> None:
    done, unknown = deleted(part()), NO_MATCH
    assert "so that later training leaves your data out." in text(done)
    limited = replace(done, limited_to=("digits",), kept_out=Suppress.NAMED_MODELS)
    assert "so that later training leaves your data out of these models." in text(limited)
    for facts in (done, unknown):
        lifted = text(replace(facts, kept_out=None))
        assert "coded form" in text(facts) and "coded form" not in lifted and "left out" not in lifted


def test_the_letter_counts_systems_that_did_not_say_which_version_they_serve() -> None:
    consumers = [{"name": "web", "version": 1, "status": "behind"}, {"name": "app", "version": 3, "status": "unknown"}]
    said = text(deleted(part(consumers=consumers)))
    assert "1 system still used an older version at the signature. 1 system did not say which version." in said


def test_a_rejection_and_an_extension_are_sent_in_time() -> None:
    assert written(REJECTED).send_by == DUE, "one month after the receipt"
    assert "because: the copy of your passport shows another name. You can send us [ ]" in text(REJECTED)
    extended = LETTERS["extended"][0]
    assert written(extended).send_by == DUE
    assert "gives us until 23 December 2026" in text(extended) and "once, to 23 February 2027" in text(extended)


@given(
    st.lists(st.sampled_from(list(Guarantee)), min_size=1, max_size=12),
    st.floats(0, 5),
    st.one_of(st.none(), st.floats(0, 5)),
    st.integers(1, 10_000_000),
    st.booleans(),
    st.one_of(st.none(), st.sampled_from(Enclosure)),
)
def test_a_letter_about_any_certificate_is_one_page(
    guarantees: list[Guarantee], now: float, ever: float | None, samples: int, more: bool, walls: Enclosure | None
) -> None:
    behind = [{"name": "web-shop", "version": 1, "status": "behind"}] * more
    claims = [
        (part(each) if walls is None else walled(walls, each, own_readers=int(more)))["claim"] for each in guarantees
    ]
    parts = [
        part(each, model=f"m{at}", samples=samples, consumers=behind, claim=claim)
        for at, (each, claim) in enumerate(zip(guarantees, claims, strict=True))
    ]
    word = any(claim["operators_word"] for claim in claims)
    strong = {Guarantee.EXACT, Guarantee.PROVED}
    bounded = {*guarantees} <= strong and not word
    facts = deleted(*parts, together=both(now, ever) if bounded else None)
    if more:  # the words of everything that can come together
        facts = replace(
            facts, limited_to=("m0", "m1", "m2"), parts=[*facts.parts, ModelOutcome("x", Reason.MODEL_RETIRED, None, 0)]
        )
    words = text(facts)
    assert len(words.split()) <= (LONGEST if walls is None else LONGEST + 100), "what is our word has to be said"
    numbered = {each for each, claim in zip(guarantees, claims, strict=True) if not claim["operators_word"]}
    assert ("times in 100" in words or "coin toss" in words) == (not strong.isdisjoint(numbered))
    assert ("We have deleted" in words) == bounded


def ask(client: TestClient, subject: str, **more: Any) -> str:
    body = {"subject_id": subject, "regulation": "gdpr", **more}
    return str(client.post("/v1/deletion-requests", json=body, headers={"Idempotency-Key": subject}).json()["id"])


def test_the_page_has_a_letter_for_each_ended_and_extended_request(
    login: Login, client: TestClient, service: Service
) -> None:
    live_model(service)
    live_model(service, name="people", people={"eve": ["e1", "e2", "e3"]})
    console = login()

    def shown(request: str) -> str:
        page = console.get(f"/console/requests/{request}").text
        assert f"/console/requests/{request}/letter" in page
        return console.get(f"/console/requests/{request}/letter").text

    unknown = ask(client, "zoe", case_id="DSR-7")
    page = shown(unknown)
    assert "We did not find your identifier in our trained models." in page and "behind the 2 models" in page
    assert "Our reference: <strong>DSR-7</strong>" in page
    with service.database.write() as session:
        session.execute(update(Generation).values(status="candidate"))
    assert "We did not find your identifier" not in shown(unknown), "a model is trained again"
    with service.database.write() as session:
        session.execute(update(Generation).values(status="live"))
    refused = ask(client, "bob", verified=False)
    assert console.get(f"/console/requests/{refused}/letter").status_code == 409
    client.post(f"/v1/deletion-requests/{refused}/reject", json={"reason": "Not the person."})
    page = shown(refused)
    assert "We did not carry out your request." in page and "because: Not the person. You can" in page
    assert "Send it by" in page
    client.post(f"/v1/deletion-requests/{ask(client, 'ada')}/extend")
    extended = ask(client, "ada")
    assert "We need more time." in shown(extended)


def test_the_page_has_letters_for_samples_and_for_lifted_suppressions(
    login: Login, client: TestClient, service: Service
) -> None:
    live_model(service)
    console = login()

    def lettered(key: str, body: dict[str, Any]) -> str:
        made = client.post("/v1/deletion-requests", json=body, headers={"Idempotency-Key": key}).json()
        return str(made["id"])

    samples = lettered("s", {"sample_ids": ["unknown-record"], "regulation": "gdpr"})
    assert "We did not find your identifier" not in console.get(f"/console/requests/{samples}/letter").text
    person = lettered("p", {"subject_id": "zoe", "regulation": "gdpr"})
    assert "We keep your identifier in coded form" in console.get(f"/console/requests/{person}/letter").text
    lifted = client.post(f"/v1/deletion-requests/{person}/lift", json={"reason": "came back"})
    assert lifted.is_success, lifted.text
    assert "coded form" not in console.get(f"/console/requests/{person}/letter").text


def test_the_page_says_who_is_only_in_a_holdout(login: Login, client: TestClient, service: Service) -> None:
    live_model(service)
    with service.database.write() as session:
        model = session.query(Model).one()
        person = subject_digest(service.pepper, "default", "zoe")
        session.add(HoldoutPerson(generation_id=model.generation_id, subject_digest=person))
    request = ask(client, "zoe")
    told = client.get(f"/v1/deletion-requests/{request}").json()
    assert told["title"] == "These data measure accuracy and are no training samples."
    page = login().get(f"/console/requests/{request}/letter").text
    assert "No model was trained" not in page and "how often the model &#34;digits&#34; is right" in page
    with service.database.write() as session:
        session.execute(update(Generation).values(manifest={"with_rows": True}))
    assert "No model was trained on your data." in letter_of(client, login(), "zoe")


def letter_of(client: TestClient, console: TestClient, subject: str) -> str:
    """The letter about a new request of the same person."""
    body, key = {"subject_id": subject, "regulation": "gdpr"}, {"Idempotency-Key": secrets.token_hex(8)}
    request = client.post("/v1/deletion-requests", json=body, headers=key).json()["id"]
    return console.get(f"/console/requests/{request}/letter").text
