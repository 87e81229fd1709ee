"""Every form in which a certificate was ever issued is read, by each verifier, with its log and without.

``vectors/certificates`` holds what the service of that commit wrote: one deletion from the recipe ``tiny`` by
``newton``, asked of its API, carried out by its worker, signed by its scheduler.
"""

from __future__ import annotations

import contextlib
import io
import json
from base64 import b64decode, b64encode
from pathlib import Path

import pytest

from expunge_client import NotAuthentic, verify_certificate
from expunge_client.cli.commands.certificate import verify
from expunge_service.audit.log import canonical
from tests.service.certificates.test_verifiers import (
    THIEF,
    VECTORS,
    Json,
    Papers,
    all_verdicts,
    exported,
    proved_in,
    signed,
    statement_of,
    verdicts,
)

ISSUED = {path.stem: json.loads(path.read_text()) for path in sorted((VECTORS / "certificates").glob("*.json"))}
FIRST, DIGESTED = "2026-11-21-0920", "2026-11-22-0207"


def log_of(issued: Json) -> str:
    return "".join(json.dumps(line) + "\n" for line in issued["log"])


@pytest.mark.parametrize("form", ISSUED)
def test_a_certificate_of_every_form_is_read(form: str, tmp_path: Path) -> None:
    issued = ISSUED[form]
    for log in (None, tuple(issued["log"])):
        said = all_verdicts({form: Papers(issued["certificate"], issued["key"], log)}, tmp_path)
        assert set(said[form].values()) == {True}
    named = {"opening": issued["opening"], "subject_id": issued["subject"]}
    verify_certificate(issued["certificate"], issued["key"], log=log_of(issued), **named)
    with pytest.raises(NotAuthentic, match="not about the person that you named"):
        verify_certificate(issued["certificate"], issued["key"], **named | {"subject_id": "tiny-person-4"})


@pytest.mark.parametrize("form", ISSUED)
def test_what_it_claims_is_shown_whatever_the_word_was(form: str, tmp_path: Path) -> None:
    certificate, key, log = Papers(ISSUED[form]["certificate"], ISSUED[form]["key"], tuple(ISSUED[form]["log"])).write(
        tmp_path
    )
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        verify(certificate, key, log)
    (part,) = statement_of(ISSUED[form]["certificate"])["predicate"]["models"]
    assert f"{part['model']}: proved" in said.getvalue()
    digested = "claim_sha256" in log_of(ISSUED[form])
    assert ("claim compared with the log" in said.getvalue()) == digested == (form >= DIGESTED)
    assert ("has no digest of its claim" in said.getvalue()) != digested


@pytest.mark.parametrize("form", ISSUED)
def test_a_byte_changed_is_refused(form: str, tmp_path: Path) -> None:
    issued = ISSUED[form]
    payload = bytearray(b64decode(issued["certificate"]["payload"]))
    payload[payload.index(b"proved")] ^= 1
    changed = issued["certificate"] | {"payload": b64encode(payload).decode()}
    assert set(verdicts(Papers(changed, issued["key"], None), tmp_path).values()) == {False}
    place = next(n for n, line in enumerate(issued["log"]) if "version.published" in line["body"])
    line = issued["log"][place]
    edited = {**line, "body": line["body"].replace("newton", "mewton")}
    log = (*issued["log"][:place], edited, *issued["log"][place + 1 :])
    assert set(verdicts(Papers(issued["certificate"], issued["key"], log), tmp_path).values()) == {False}


@pytest.mark.parametrize("form", [FIRST, DIGESTED])
def test_the_log_contradicts_a_claim_from_the_day_on_that_it_has_its_digest(form: str, tmp_path: Path) -> None:
    """Signed anew by somebody who has the key. Before that day the answer says that the claim was not compared."""
    bodies = [line["body"] for line in ISSUED[form]["log"][:-1]]
    statement = proved_in(statement_of(ISSUED[form]["certificate"]), bodies, THIEF)
    same = Papers(signed(THIEF, statement), str(THIEF.verifier), exported(bodies, THIEF))
    statement["predicate"]["models"][0]["claim"]["epsilon"] /= 2
    less = Papers(signed(THIEF, statement), same.key, same.log)
    statement["predicate"]["models"][0]["lineage"] += 1
    other = Papers(signed(THIEF, statement), same.key, same.log)
    assert set(verdicts(same, tmp_path).values()) == {True}
    assert set(verdicts(other, tmp_path).values()) == {False}
    if form == DIGESTED:
        assert set(verdicts(less, tmp_path).values()) == {False}
    else:
        found = verify_certificate(
            less.certificate, less.key, log="".join(json.dumps(each) + "\n" for each in less.log or ())
        )
        assert not found.claim_in_log and "no digest of its claim" in found.compared


def test_an_entry_of_today_has_a_digest_whatever_a_certificate_calls_its_generation(tmp_path: Path) -> None:
    """Nobody passes by the digest with an old word: the log's entry must have that word too."""
    newest = ISSUED[max(ISSUED)]
    bodies = [line["body"] for line in newest["log"][:-1]]
    statement = statement_of(newest["certificate"]) | {"predicateType": "urn:expunge:predicate:erasure:v1"}
    part = statement["predicate"]["models"][0]
    part["lineage"] = part.pop("generation")
    part["claim"]["epsilon"] /= 2
    for texts in (bodies, [_without_digest(body) for body in bodies]):
        made = signed(THIEF, proved_in(statement, texts, THIEF))
        papers = Papers(made, str(THIEF.verifier), exported(texts, THIEF))
        assert set(verdicts(papers, tmp_path).values()) == {False}


def _without_digest(body: str) -> str:
    said = json.loads(body)
    return canonical({name: value for name, value in said.items() if name != "claim_sha256"})
