"""What the API shows of versions, compared with the log: an edited row is named."""

from __future__ import annotations

import hashlib
import json
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from expunge_client import certificates
from expunge_client.cli.output import CommandError
from expunge_service.api.dependencies import Service
from expunge_service.audit import merkle
from expunge_service.audit.log import canonical
from expunge_service.audit.signed_note import NotAuthentic
from expunge_service.cli import log_check
from expunge_service.infra.tables import AuditEntry, Version
from expunge_service.models.publication_entry import (
    claim_digest,
    compare_shown,
    require_published,
    says_claim,
    unlogged,
)
from tests.service.certificates.test_certificates import issued
from tests.service.worlds import live_model

__all__ = ["issued"]
VECTORS = Path(__file__).parents[1] / "vectors"
CLAIMS: list[dict[str, str]] = json.loads((VECTORS / "claims.json").read_text())
"""what node wrote: vectors/canonical.mjs"""
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def shown(client: TestClient) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(exported entries, the version that the log publishes); the fixtures write no entry for version 1"""
    entries = client.get("/v1/audit-log").json()["data"]
    return entries, client.get("/v1/models/digits/versions").json()["data"][:1]


@ON_SQLITE
@pytest.mark.parametrize("values", [{"claim": {"guarantee": "exact"}}, {"checkpoint": "0" * 64}, {"method": "retrain"}])
def test_an_edited_version_does_not_agree_with_the_log(
    client: TestClient, service: Service, issued: Any, values: dict[str, Any]
) -> None:
    _, _, version = issued
    assert compare_shown(*shown(client)) == 1
    with service.database.write() as session:
        session.execute(update(Version).where(Version.id == version.id).values(**values))
    with pytest.raises(NotAuthentic, match=r"version 2 of digits: (claim_sha256|checkpoint|method)"):
        compare_shown(*shown(client))


@ON_SQLITE
def test_a_version_that_the_log_does_not_publish_is_named(client: TestClient, service: Service) -> None:
    live_model(service)
    versions = client.get("/v1/models/digits/versions").json()["data"]
    assert unlogged([], versions)
    with pytest.raises(NotAuthentic, match="no entry that publishes version 1 of digits"):
        compare_shown([], versions)


@ON_SQLITE
@pytest.mark.parametrize(
    ("published_at", "method", "told"),
    [
        ("9", "recollection", r"up to its signed head of .* from version 40 of digits .* wait for the scheduler"),
        ("1", "recollection", "the database does not agree with it. .*no entry that publishes version 40"),
        ("9", "retrain", "the database does not agree with it. .*differ on version 2 of digits: method"),
    ],
)
def test_an_entry_that_waits_for_its_signature_is_no_fault_of_the_database(
    client: TestClient,
    service: Service,
    issued: Any,
    monkeypatch: pytest.MonkeyPatch,
    published_at: str,
    method: str,
    told: str,
) -> None:
    """After a rotation whose key the scheduler lacks, versions are published and their entries are not signed."""
    entries, versions = shown(client)
    head = client.get("/v1/audit-log/checkpoint").text
    late = [versions[0] | {"method": method}, versions[0] | {"number": 40, "published_at": published_at}]
    monkeypatch.setattr(log_check, "_versions", lambda: late)
    monkeypatch.setattr(log_check, "_require_agreed", lambda: None)
    monkeypatch.setattr(log_check, "_tables", lambda: ([], []))
    monkeypatch.setattr(log_check, "AGAIN_SECONDS", 0)
    monkeypatch.setattr(log_check, "_served", lambda _: (head, entries))
    monkeypatch.setenv("EXPUNGE_HOME", str(service.settings.home))
    with pytest.raises(CommandError, match=told):
        log_check.check(None, None)


@pytest.mark.parametrize("vector", CLAIMS, ids=range(len(CLAIMS)))
def test_a_claims_digest_is_the_one_that_another_language_computes(vector: dict[str, str]) -> None:
    """Three implementations in Python against one in JavaScript, whose numbers RFC 8785 writes."""
    claim = json.loads(vector["claim"])
    example = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "verify.py"), run_name="example")
    assert hashlib.sha256(vector["canonical"].encode()).hexdigest() == vector["sha256"]
    assert certificates._canonical(claim) == example["canonical"](claim) == vector["canonical"]
    assert claim_digest(claim) == certificates._claim_digests(claim)[0] == example["digests"](claim)[0]
    assert claim_digest(claim) == vector["sha256"]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed; its answers are committed")
def test_the_vectors_are_what_node_writes() -> None:
    text = (VECTORS / "claims.json").read_text()
    done = subprocess.run(["node", VECTORS / "canonical.mjs"], input=text, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == CLAIMS


@ON_SQLITE
def test_a_version_that_was_published_with_the_digest_of_before_is_still_certified(
    service: Service, client: TestClient, issued: Any
) -> None:
    """Its entry holds the SHA-256 of Python's canonical JSON; it is compared, and an edit is still found."""
    _, _, version = issued
    with service.database.write() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.kind == "version.published")).one()
        before = hashlib.sha256(canonical(version.claim).encode()).hexdigest()
        assert before != claim_digest(version.claim) and says_claim({"claim_sha256": before}, version.claim)
        entry.body = entry.body.replace(claim_digest(version.claim), before)
        entry.leaf_hash = merkle.leaf_hash(entry.body.encode()).hex()
        session.flush()
        row = session.get_one(Version, version.id)
        require_published(session, row, [entry])
        row.claim = row.claim | {"epsilon": 0.0}
        with pytest.raises(NotAuthentic, match="claim_sha256"):
            require_published(session, row, [entry])


@ON_SQLITE
def test_what_an_entry_is_stands_in_its_text_and_not_beside_it(client: TestClient, issued: Any) -> None:
    entries, versions = shown(client)
    called = [entry | {"kind": "version.published"} for entry in entries]
    assert compare_shown(called, versions) == 1
    other = [entry | {"kind": "hold.placed"} for entry in entries]
    assert compare_shown(other, versions) == 1
