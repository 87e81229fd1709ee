"""A certificate in plain words: derived from the statement alone, and under no guarantee more than it says."""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from expunge_client import NotAuthentic, verify_certificate
from expunge_service.api.dependencies import Service
from expunge_service.audit.log import integrate
from expunge_service.audit.signed_note import Signer
from expunge_service.certificates.issue import issue_due
from expunge_service.certificates.plain_words import PlainWords, in_words, note, weakest
from tests.service.certificates.test_certificates import CLAIM, carry_out, tick
from tests.service.conftest import Login
from tests.service.worlds import live_model
from unlearning.accounting.certificate import DIFFERED, Claim, Constant, Guarantee, Reference, guess
from unlearning.accounting.world import DeclaredFile, Enclosure, WorldRecord

MARKS = {
    Guarantee.EXACT: "is what this training gives without",
    Guarantee.PROVED: "mathematical proof",
    Guarantee.CALIBRATED: "measured on other deletions, and not proved",
    Guarantee.ESTIMATED: "is an estimate, which is not proved",
    Guarantee.NONE: "How much of them is left in version 3 is not known",
}
"""what only the sentence of this guarantee says"""
NOW, EVER = 0.001, 0.268
"""mu of the versions so far and of all that may follow: right at most 50.1 and 60.6 times in 100"""
NUMBER = "times in 100"


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


def part(guarantee: Guarantee = Guarantee.PROVED, **more: Any) -> dict[str, Any]:
    exact, bounded = guarantee is Guarantee.EXACT, guarantee is not Guarantee.NONE
    return {
        "model": "digits",
        "version": 3,
        "samples": 10,
        "claim": claim_of(guarantee),
        "as_of_version": {"mu": (0.0 if exact else NOW) if bounded else None},
        "from_this_version_on": limit(0.0 if exact else EVER, guarantee) if bounded else None,
        "consumers": [],
    } | more


def limit(mu: float, guarantee: Guarantee = Guarantee.PROVED) -> dict[str, Any]:
    return {"guarantee": guarantee.value, "mu": mu}


def both(now: float, ever: float | None, guarantee: Guarantee = Guarantee.PROVED) -> dict[str, Any]:
    """The statement's ``together``: over all its models."""
    return {"mu": now, "from_these_versions_on": None if ever is None else limit(ever, guarantee)}


def statement(*parts: dict[str, Any], **facts: Any) -> dict[str, Any]:
    said = {name: facts.pop(name, None) for name in ("samples_named", "suppress")}
    accepted = {"kind": "request.accepted", "body": json.dumps(said)}
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
    assert (NUMBER in said) == (guarantee in (Guarantee.EXACT, Guarantee.PROVED))
    if guarantee not in (Guarantee.EXACT, Guarantee.PROVED):
        for claim in ("removed", "deleted", "erased", "gone", "guarantee", "at most"):
            assert claim not in said, claim


def meant(*parts: dict[str, Any], **facts: Any) -> tuple[str, ...]:
    return in_words(statement(*parts, **facts)).means


def test_proved_says_the_odds_now_and_ever() -> None:
    assert meant(part()) == (
        "Suppose someone has every version from 3 on and none from before, and guesses whether this person's data were "
        "ever used. From even odds, a blind guess is right 50 times in 100. The versions so far, up to version 3 on "
        "21 November 2026, allow at most 50.1, and all that may ever follow at most 60.6. This is proved, under the "
        "assumptions listed below.",
    )
    unlimited = ("allow at most 50.1. No limit is claimed for later trainings. This is proved",)
    assert all(each in meant(part(from_this_version_on=None))[0] for each in unlimited)
    weaker = part(from_this_version_on=limit(EVER, Guarantee.CALIBRATED))
    assert meant(weaker) == meant(part(from_this_version_on=None)), "a measured later limit is none"


def test_exact_says_what_the_training_gives_and_a_number_only_where_it_was_tried() -> None:
    blind = (
        " Someone who has it and later versions and none from before, and who had no influence on which deletions were "
        "requested, can only guess blindly whether this person's data were ever used: from even odds, right 50 times "
        "in 100."
    )
    assert meant(exact()) == (f"Version 3 is what this training gives without this person.{blind}",)
    assert meant(exact(deterministic=True)) == (
        f"Version 3 is what this training gives without this person, bit for bit.{blind}",
    )
    older = exact(tried=["Not tried: Two runs gave different results."])
    del older["claim"]["operators_word"]  # a claim from before trainings had processes of their own lacks it
    for word in (exact(operators_word=True), older):
        assert meant(word) == (
            "Version 3 is what this training gives without this person. That the training reads nothing else is the "
            "operator's word, so no number is given.",
        )
        assert NUMBER not in text(in_words(statement(word)))
        assert note(word["claim"]) == "on your word: not tried"
    differed = exact(operators_word=True, deterministic=True, tried=[f"Not tried: {DIFFERED}, with the same seeds."])
    assert meant(differed) == (
        "Version 3 is what this training gives without this person. Two runs on the same samples gave different "
        "results. That the training reads nothing else is the operator's word, so no number is given.",
    )
    assert note(differed["claim"]) == "on your word: two runs differed"
    assert note(exact()["claim"]) is None and note(claim_of(Guarantee.NONE) | {"operators_word": True}) is None
    later = meant(exact() | {"from_this_version_on": limit(EVER)})[0]
    assert "The versions so far, up to version 3 on 21 November 2026, allow at most 50, and all that" in later
    assert "had no influence on which deletions were requested, and guesses" in later and "at most 60.6." in later
    without = meant(exact() | {"from_this_version_on": None})[0]
    assert "who has it and none from before" in without and without.endswith("No limit is claimed for later trainings.")


FILES = (DeclaredFile("cities.csv", "1" * 64), DeclaredFile("tokenizer.json", "2" * 64))


def walled(
    walls: Enclosure = Enclosure.NEW_ROOT,
    guarantee: Guarantee = Guarantee.EXACT,
    *,
    deterministic: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """A version that was made behind walls; ``more``: of their record."""
    given = {"public_files": FILES, "sources": ("table", "reader"), "repeats": True} | more
    world = WorldRecord(walls, "c" * 64, **given)
    return part(guarantee, claim=claim_of(guarantee, world=world, declared=world.declared, deterministic=deterministic))


def test_what_the_walls_showed_is_said_and_the_rest_is_the_operators_word() -> None:
    walled_in = "It was made from the rows of the others alone; the kernel opened nothing else."
    (shown,) = meant(walled(deterministic=True))
    assert shown.startswith(
        f"Version 3 is what this training gives without this person, bit for bit. {walled_in} Someone"
    )
    assert NUMBER in shown and note(walled()["claim"]) is None
    for walls in (Enclosure.LANDLOCK, Enclosure.NONE):
        assert meant(walled(walls)) == (
            "Version 3 is what this training gives without this person. That the training reads nothing else is the "
            "operator's word, so no number is given.",
        )
        assert note(walled(walls)["claim"]) == f"on your word: walls: {walls.value}"
    assert meant(walled(own_readers=1)) == (
        f"Version 3 is what this training gives without this person. {walled_in} A source is read by the operator's "
        "own program before rows are left out, so no number is given.",
    )
    assert note(walled(own_readers=1)["claim"]) == "on your word: your own reader"
    assert "the kernel" not in meant(walled(guarantee=Guarantee.PROVED))[0], "its weights began with everybody"


def test_two_worlds_that_differ_are_said_beside_the_number() -> None:
    (said,) = meant(walled(repeats=False))
    assert f"without this person. {DIFFERED}. It was made from" in said and NUMBER in said and "bit for bit" not in said


def test_what_a_world_takes_from_the_operators_word_has_plain_sentences() -> None:
    (declared,) = (line for line in in_words(statement(walled(own_readers=1))).relies_on if "and not checked" in line)
    assert declared == (
        "Taken from the organisation's word, and not checked: 1 source is read by the operator's own program before "
        "rows are left out; it mixes no people. The recipe's program and 2 further files were not made from this "
        "person's data. No column of the tables mixes several people. If one of these is wrong, this "
        "certificate is wrong."
    )
    (unwalled,) = (line for line in in_words(statement(walled(Enclosure.NONE))).relies_on if "and not checked" in line)
    assert "The training opened nothing but the rows of the others." in unwalled


def exact(**claim: Any) -> dict[str, Any]:
    return part(Guarantee.EXACT, claim=claim_of(Guarantee.EXACT) | claim)


def test_the_others_say_that_nothing_is_known() -> None:
    said = (
        "Version 3 was changed by a method that is meant to remove this person's data. How much is left is not known, "
        "and no limit is claimed."
    )
    assert meant(part(Guarantee.NONE)) == (said,)
    assert meant(part(Guarantee.CALIBRATED)) == (f"{said} The formal text has a measurement, which is no proof.",)
    assert meant(part(Guarantee.ESTIMATED)) == (f"{said} The formal text has an estimate, which is no proof.",)


def test_several_models_have_one_number_where_all_are_bounded() -> None:
    pair = [part(), part(Guarantee.EXACT, model="faces", version=7)]
    (said,) = meant(*pair, together=both(NOW, EVER))
    assert "has every version of digits from 3 and of faces from 7 on" in said
    assert "up to these on 21 November 2026, allow at most 50.1, and all that may ever follow at most 60.6" in said
    assert "no influence" in said
    (said,) = meant(exact(), part(Guarantee.EXACT, model="faces"), together=both(0.0, 0.0, Guarantee.EXACT))
    assert said.startswith("Version 3 of digits and version 3 of faces are what these trainings give without this")
    assert "who has them and later versions" in said


def test_without_one_number_each_model_has_a_paragraph_the_weakest_first() -> None:
    weak = part(Guarantee.NONE, model="faces")
    mixed = statement(part(), weak)
    assert weakest(mixed["predicate"]) is Guarantee.NONE
    first, second = in_words(mixed).means
    assert first.startswith("Version 3 of faces was changed by a method") and NUMBER not in first
    assert "has every version of digits from 3 on" in second and "50.1" in second
    word, proved = meant(exact(operators_word=True) | {"model": "faces"}, part(), together=both(NOW, EVER))[::-1]
    assert "Version 3 of faces is what" in word and NUMBER not in word and "50.1" in proved


def test_samples_that_were_named_are_not_called_a_person() -> None:
    for each in (part(), exact(), part(Guarantee.NONE)):
        (said,) = meant(each, samples_named=2)
        assert "these samples" in said and "person" not in said


@given(
    st.sampled_from([Guarantee.PROVED, Guarantee.EXACT]),
    st.floats(0, 5),
    st.one_of(st.none(), st.floats(0, 5)),
    st.booleans(),
    st.booleans(),
)
def test_the_numbers_are_those_of_the_statement_and_no_sentence_has_a_pronoun(
    guarantee: Guarantee, now: float, ever: float | None, samples: bool, several: bool
) -> None:
    now = 0.0 if guarantee is Guarantee.EXACT else now
    one = part(guarantee, as_of_version={"mu": now}, from_this_version_on=None if ever is None else limit(ever))
    parts = [one, one | {"model": "faces"}] if several else [one]
    words = in_words(statement(*parts, together=both(now, ever), samples_named=1 if samples else None))
    (said,) = words.means
    given = {float(each) for each in re.findall(r"(?:at most|right) (\d+(?:\.\d)?)", said)}
    assert given == {50.0, guess(now), *([] if ever is None else [guess(ever)])}
    assert not re.search(r"\b(her|hers|she|whoever|nobody)\b", " ".join([*text(words).split(), *words.not_said]), re.I)


def test_the_words_are_signed_and_read_from_the_statement() -> None:
    assert in_words(statement(part(), in_plain_words=["As it was signed."])).means == ("As it was signed.",)


def test_a_day_and_a_deadline_are_those_of_the_statement() -> None:
    def first(**facts: Any) -> str:
        return in_words(statement(part(), **facts)).happened[0]

    assert first().endswith("completed on 21 November 2026, within the deadline of the UK GDPR (1 December 2026).")
    assert first(regulation=None).endswith("within the deadline (1 December 2026).")
    assert "after the deadline" in first(completed_at="2026-12-01T10:00:00.000001Z")
    assert "within the deadline" in first(completed_at="2026-12-01T10:00:00.000000Z")
    assert first(due_at=None).endswith("No legal deadline was named.")
    assert "extended on 20 November 2026" in first(extended_at="2026-11-20T10:00:00.000000Z")
    assert first(suppress="everywhere").startswith("The request of 1 November 2026, for the models that it named only,")


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
    assert "word, and not checked: d e f If one of these is wrong, this certificate is wrong." in declared
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
    for each in ("every copy", "the person left", "Other people", "backups", "right person"):
        assert each in said


def test_a_model_that_ended_without_a_version_is_said_in_the_statements_own_words() -> None:
    ended = [{"model": "faces", "reason": "model_retired", "statement": "It is retired. Nothing is claimed about it."}]
    words = in_words(statement(part(), without_version=ended))
    assert words.happened[-1] == "faces: It is retired. Nothing is claimed about it."
    assert "has every version of digits from 3 on" in words.means[0], "the number is not about faces"


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
    actions = ("Download the certificate</a>", "Letter to the person</a>", "Print</button>")
    after = [page.index(each) for each in ("What it does not say", *actions, '<details class="formal">')]
    assert after == sorted(after) and page.index("Signed by") > after[-1] and page.count("/certificate.json") == 1
    assert places == sorted(places) and "within the deadline of the GDPR" in page and "What it does not say" in page
    letter = console.get(f"/console/requests/{request}/letter").text
    assert "DSR-7" in page and "Our reference: <strong>DSR-7</strong>" in letter
    assert "DSR-7" not in client.get(f"/v1/deletion-requests/{request}/certificate").text, "nor in the signed text"
    statement = client.get(f"/v1/deletion-requests/{request}/certificate").json()["payload"]
    assert b"DSR-7" not in base64.b64decode(statement)
    assert "We removed 2 records about you from the model &#34;digits&#34;. Version 2 is the first" in letter
    assert request in letter and "copies that others kept" in letter and "50.1 times in 100" in letter
    assert login("models:read").get(f"/console/requests/{request}/letter").status_code == 403
    dossier = login().get("/console/dossier").text
    assert "This service stores no measured attacks" in dossier and "--recipe $EXPUNGE_RECIPES/digits" in dossier
    assert "1 request was received" in dossier and "proved" in dossier and request[:8] in dossier


def test_what_made_the_version_is_signed_and_shown(login: Login, client: TestClient, service: Service) -> None:
    model, body = live_model(service), {"subject_id": "ada", "regulation": "gdpr"}
    request = client.post("/v1/deletion-requests", json=body, headers={"Idempotency-Key": "k"}).json()["id"]
    world = WorldRecord(Enclosure.LANDLOCK, "c" * 64, FILES, ("table", "reader"), own_readers=1, repeats=False)
    made = dataclasses.replace(CLAIM, world=world, declared=world.declared)
    carry_out(service, model, request, claim=made)
    assert tick(service) == 1
    envelope = client.get(f"/v1/deletion-requests/{request}/certificate").json()
    key = str(Signer.of(service.settings).verifier)
    (signed,) = verify_certificate(envelope, key).statement["predicate"]["models"]
    assert Claim.from_json(signed["claim"]) == made
    payload = base64.b64decode(envelope["payload"]).replace(b"landlock alone", b"new root")
    with pytest.raises(NotAuthentic, match="signature"):
        verify_certificate(envelope | {"payload": base64.b64encode(payload).decode()}, key)
    page, letter = (login().get(f"/console/requests/{request}/{name}").text for name in ("certificate", "letter"))
    for shown in (
        "<dd>landlock alone, so that nothing else was opened is declared</dd>",
        "<dd>table, reader; 1 read by the operator's own program</dd>",
        "<dd>different</dd>",
        f"sha256:{'c' * 64}",
        f'cities.csv: <code class="wrap">sha256:{"1" * 64}</code>',
        "The training opened nothing but the rows of the others.",
    ):
        assert shown in page, shown
    assert "opened nothing else is our word" in letter and "We vouch for the program itself and for 2 further" in letter
