"""Signing keys are rotated: what the retired key signed still verifies, and a retired key signs nothing more."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from typer.testing import CliRunner

from expunge_client import verify_certificate
from expunge_client.cli.main import app
from expunge_service.api.dependencies import Service
from expunge_service.audit import merkle
from expunge_service.audit.key_rotation import FOLDER, handovers, keep_handovers, keys_of, rotate_signing_key
from expunge_service.audit.log import canonical, integrate, record
from expunge_service.audit.signed_note import Handover, NotAuthentic, Signer, Verifier
from expunge_service.audit.succession import ROTATED, Succession, signatures, successions, trusted_keys
from expunge_service.audit.verification import verify
from expunge_service.cli.commands.processes import prepare
from expunge_service.infra.settings import SettingsError
from expunge_service.infra.stores import folder_at
from expunge_service.infra.tables import AuditEntry
from tests.harness import log_tree
from tests.service.audit.test_audit import download, grow
from tests.service.certificates.test_certificates import PATH, carry_out, tick
from tests.service.worlds import live_model


def head(client: TestClient) -> str:
    return str(client.get("/v1/audit-log/checkpoint").text)


def rotate_signing(service: Service, monkeypatch: pytest.MonkeyPatch) -> Verifier:
    """The command as an operator runs it; returns the key that it prints."""
    monkeypatch.setenv("EXPUNGE_HOME", str(service.settings.home))
    monkeypatch.setenv("EXPUNGE_DATABASE_URL", service.database.engine.url.render_as_string(hide_password=False))
    done = CliRunner().invoke(app, ["audit", "rotate-key"])
    assert done.exit_code == 0, (done.output, done.exception)
    return Verifier.parse(done.stdout)


@pytest.mark.both_engines
def test_the_log_is_one_log_across_a_rotation(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(service, 5)
    first, early = Signer.of(service.settings).verifier, head(client)
    second = rotate_signing(service, monkeypatch)
    handover = head(client)
    assert first.checkpoint(handover) == second.checkpoint(handover)  # signed by both
    grow(service, 4)
    third = rotate_signing(service, monkeypatch)
    grow(service, 3)
    late, entries = head(client), download(client)
    assert Signer.of(service.settings).verifier == third
    for trusted in (first, second, third):  # forward from an old key, backward from the new one
        assert verify(entries, late, trusted, [early, handover]).size == len(entries)
        rotations = successions((each["index"], each["body"]) for each in entries)
        assert [each.key for each in trusted_keys(trusted, rotations)] == [third, second, first]
    with pytest.raises(NotAuthentic):
        first.checkpoint(late)
    old = first.checkpoint(early)
    grown = client.get("/v1/audit-log/consistency", params={"old_size": old.size}).json()
    new = third.checkpoint(grown["checkpoint"])
    hashes = [b64decode(each) for each in grown["hashes"]]
    assert log_tree.verify_consistency(old.size, new.size, old.root, new.root, hashes)


def test_certificates_of_before_and_after_verify(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = live_model(service)
    first = Signer.of(service.settings).verifier

    def certified(subject: str, first: int = 0) -> Any:
        made = client.post(PATH, json={"subject_id": subject}, headers={"Idempotency-Key": subject}).json()
        carry_out(service, model, made["id"], first=first)
        assert tick(service) == 1
        return client.get(f"{PATH}/{made['id']}/certificate").json()

    before = certified("ada")
    second = rotate_signing(service, monkeypatch)
    after = certified("bob", first=2)
    grow(service, 1)
    export = "\n".join(json.dumps(line) for line in [*download(client), {"checkpoint": head(client)}])
    for trusted in map(str, (first, second)):
        for certificate, its_key in ((before, first), (after, second)):
            alone = verify_certificate(certificate, str(its_key))
            assert verify_certificate(certificate, trusted, log=export).statement == alone.statement
    assert before["signatures"][0]["keyid"] == first.key_id.hex()


def test_a_process_that_holds_a_retired_key_signs_nothing(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(service, 2)
    stale = Signer.of(service.settings)
    rotate_signing(service, monkeypatch)
    before = head(client)
    with service.database.write() as session:
        record(session, "default", "test.step")
    with pytest.raises(SettingsError), service.database.write() as session:
        integrate(session, stale)
    assert head(client) == before
    with service.database.write() as session:
        assert integrate(session, Signer.of(service.settings)) == 1


def test_a_migration_with_a_retired_key_gives_it_to_no_reader(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret files of `expunge migrate` may lie in a folder of their own, which the rotation did not reach."""
    grow(service, 2)
    retired = service.settings.signing_key_file.read_text()
    new = rotate_signing(service, monkeypatch)
    prepare(service.settings).close()
    service.settings.signing_key_file.write_text(retired)
    with pytest.raises(SettingsError, match="another signing key"):
        prepare(service.settings)
    assert (service.settings.home / "log.vkey").read_text() == f"{new}\n"


@pytest.mark.both_engines
@pytest.mark.parametrize("before", ["keep_handovers", "adopt_secret"])
def test_a_rotation_that_was_cut_short_is_completed(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    grow(service, 2)
    old = Signer.of(service.settings)
    with pytest.MonkeyPatch.context() as cut:
        cut.setattr(f"expunge_service.cli.log_rotation.{before}", lambda *_: 1 / 0)
        cut.setenv("EXPUNGE_HOME", str(service.settings.home))
        cut.setenv("EXPUNGE_DATABASE_URL", service.database.engine.url.render_as_string(hide_password=False))
        assert CliRunner().invoke(app, ["audit", "rotate-key"]).exit_code != 0
    assert Signer.of(service.settings).verifier == old.verifier  # the file was not replaced
    assert old.verifier.checkpoint(head(client)) is not None  # and its holder still reads the newest head
    new = rotate_signing(service, monkeypatch)
    assert Signer.of(service.settings).verifier == new
    assert sum("key_rotated" in (entry["kind"] or "") for entry in download(client)) == 1
    assert [each.key for each in handovers(folder_at(service.settings.store))] == [new]


def rotation(old: Signer, new: Signer, **changed: str) -> Succession:
    return Succession.parse(3, canonical({"kind": ROTATED, **signatures(old, new), **changed}))


def test_nobody_but_the_old_key_names_its_successor_and_nobody_but_the_new_key_its_predecessor() -> None:
    old, new, thief = (Signer("log.example/one", seed * 32) for seed in (b"o", b"n", b"t"))
    honest = rotation(old, new)
    for configured in (old, new):
        keys = trusted_keys(configured.verifier, [honest])
        assert [(each.key, each.most) for each in keys] == [(new.verifier, None), (old.verifier, 4)]
    # a thief who owns both ends of a rotation, or either of them, takes over no other key
    names = {"key": str(thief.verifier)}
    for forged in (
        rotation(thief, thief, retired=str(old.verifier)),
        rotation(old, new, **names),
        rotation(old, new, **names, endorsement="x"),
        rotation(old, thief, endorsement=honest.endorsement),
    ):
        assert [each.key for each in trusted_keys(old.verifier, [forged])] == [old.verifier]
    names = {"retired": str(thief.verifier)}
    for forged in (
        rotation(thief, new, acknowledgement=rotation(thief, thief).acknowledgement),
        rotation(old, new, **names),
        rotation(thief, new, acknowledgement=honest.acknowledgement),
    ):
        assert forged.key == new.verifier
        assert [each.key for each in trusted_keys(new.verifier, [honest, forged])] == [new.verifier, old.verifier]


def exported(bodies: list[str]) -> list[dict[str, Any]]:
    return [{"index": n, "leaf_hash": merkle.leaf_hash(b.encode()).hex(), "body": b} for n, b in enumerate(bodies)]


def test_a_stolen_retired_key_signs_no_later_head_that_is_believed() -> None:
    old, new = (Signer("log.example/one", seed * 32) for seed in (b"o", b"n"))
    handed = {"kind": ROTATED, **signatures(old, new)}
    entries = exported([canonical({"n": 0}), canonical(handed), *(canonical({"n": n}) for n in range(2, 6))])
    leaves = [bytes.fromhex(each["leaf_hash"]) for each in entries]
    newest = new.checkpoint(6, log_tree.root_of(leaves))
    at_handover = Handover(old, new).checkpoint(2, log_tree.root_of(leaves[:2]))
    assert verify(entries, newest, old.verifier, [at_handover, old.checkpoint(1, leaves[0])]).size == 6
    with pytest.raises(NotAuthentic, match="had retired"):
        verify(entries, newest, new.verifier, [old.checkpoint(4, log_tree.root_of(leaves[:4]))])
    with pytest.raises(NotAuthentic, match="not authentic"):
        verify(entries, old.checkpoint(6, log_tree.root_of(leaves)), new.verifier)
    with pytest.raises(NotAuthentic, match="malformed"):
        verify(exported([json.dumps({"kind": "log.key_rotated"}, separators=(",", ":"))]), newest, new.verifier)


def test_a_rotation_reads_everything_that_waits_first(service: Service) -> None:
    old, new = Signer.of(service.settings), Signer(service.settings.log_origin, b"n" * 32)
    with service.database.write() as session:
        for n in range(3):
            record(session, "default", "test.step", n=n)
    with service.database.write() as session:
        rotate_signing_key(session, old, new)
    with service.database.write() as session:
        assert integrate(session, new) == 0


def planted(service: Service, facts: dict[str, Any], kind: str = ROTATED) -> None:
    """A row that somebody wrote into the database."""
    with service.database.write() as session:
        record(session, "default", ROTATED, **facts)
        record(session, "default", "test.step")
        session.flush()
        for row in session.scalars(
            select(AuditEntry).where(AuditEntry.kind == ROTATED, AuditEntry.log_index.is_(None))
        ):
            row.kind = kind  # what the log holds is the text


@pytest.mark.both_engines
@pytest.mark.parametrize("kind", [ROTATED, "hold.placed"])
@pytest.mark.parametrize("forged", ["thief retires the key", "thief was before", "older key retired again", "no words"])
def test_a_rotation_that_was_written_into_the_database_is_not_taken_into_the_log(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch, forged: str, kind: str
) -> None:
    grow(service, 2)
    first, thief = Signer.of(service.settings), Signer(service.settings.log_origin, b"t" * 32)
    rotate_signing(service, monkeypatch)
    current, before = Signer.of(service.settings), head(client)
    facts = {
        "thief retires the key": signatures(thief, thief)
        | {
            "retired": str(current.verifier),
            "acknowledgement": thief.sign(f"expunge: this key's predecessor\n{current.verifier}\n"),
        },
        "thief was before": signatures(thief, thief) | {"key": str(current.verifier)},
        "older key retired again": signatures(first, thief),  # the thief stole it after it was retired
        "no words": {"retired": str(current.verifier), "key": str(thief.verifier)},
    }
    planted(service, facts[forged], kind)
    with pytest.raises(NotAuthentic, match=r"retires|malformed"), service.database.write() as session:
        integrate(session, current)
    assert head(client) == before
    with service.database.read() as session:  # nor is its key one of those under which the page shows a certificate
        assert [each.key for each in keys_of(session, current.verifier)] == [current.verifier, first.verifier]


def test_the_first_rotation_retires_the_key_of_the_newest_head_and_no_other(service: Service) -> None:
    grow(service, 2)
    strangers = [Signer(service.settings.log_origin, seed * 32) for seed in (b"s", b"t")]
    planted(service, signatures(*strangers))
    for signer in (Signer.of(service.settings), strangers[1]):
        with pytest.raises(NotAuthentic), service.database.write() as session:
            integrate(session, signer)


@pytest.mark.parametrize("place", ["a folder", "a bucket"])
def test_the_store_holds_each_rotation_and_none_is_overwritten(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, place: str
) -> None:
    if place == "a bucket":
        monkeypatch.setenv("EXPUNGE_STORE", request.getfixturevalue("bucket"))
        service = replace(service, settings=service.settings.model_copy(update={"store": os.environ["EXPUNGE_STORE"]}))
    grow(service, 3)
    rotate_signing(service, monkeypatch)
    rotate_signing(service, monkeypatch)
    kept = folder_at(service.settings.store).inside(FOLDER)
    said = {
        f"{line['index'] + 1}.{Verifier.parse(json.loads(line['body'])['key']).key_id.hex()}": line["body"]
        for line in download(client)
        if line["kind"] == ROTATED
    }
    assert len(said) == 2 and {each.name: kept.read(each.name).decode() for each in kept.entries()} == said
    name, text = next(iter(said.items()))
    with service.database.read() as session:
        kept.delete([name])
        keep_handovers(session, folder_at(service.settings.store))
        assert kept.read(name).decode() == text
        for other in (text[:10], "another"):  # a power cut leaves no half file (test_storage)
            kept.write(name, [other.encode()])
            with pytest.raises(NotAuthentic, match="not overwritten"):
                keep_handovers(session, folder_at(service.settings.store))
            assert kept.read(name).decode() == other
