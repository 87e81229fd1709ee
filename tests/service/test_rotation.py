"""Signing keys are rotated: what the retired key signed still verifies, and a retired key signs nothing more."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from service.api.dependencies import Service
from service.audit import merkle as tree
from service.audit.key_rotation import Succession, rotate, succeed
from service.audit.log import canonical, integrate, record
from service.audit.signed_note import Handover, NotAuthentic, Signer, Verifier
from service.audit.verify import retired_keys, verify
from service.certificates.envelope import verify as verify_certificate
from service.cli.main import app
from service.infra.settings import SettingsError
from tests.service.test_audit import download, grow
from tests.service.test_certificates import PATH, carry_out, tick
from tests.service.worlds import live_model


def head(client: TestClient) -> str:
    return client.get("/v1/audit-log/checkpoint").text


def rotate_signing(service: Service, monkeypatch: pytest.MonkeyPatch) -> Verifier:
    """The command as an operator runs it; returns the key that it prints."""
    monkeypatch.setenv("EXPUNGE_HOME", str(service.settings.home))
    monkeypatch.setenv("EXPUNGE_DATABASE_URL", service.database.engine.url.render_as_string(hide_password=False))
    done = CliRunner().invoke(app, ["keys", "rotate-signing"])
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
    assert retired_keys(entries) == [first, second]
    with pytest.raises(NotAuthentic):
        first.checkpoint(late)
    old = first.checkpoint(early)
    grown = client.get("/v1/audit-log/consistency", params={"old_size": old.size}).json()
    new = third.checkpoint(grown["checkpoint"])
    hashes = [b64decode(each) for each in grown["hashes"]]
    assert tree.verify_consistency(old.size, new.size, old.root, new.root, hashes)


def test_certificates_of_before_and_after_verify(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = live_model(service)
    first = Signer.of(service.settings).verifier

    def certified(subject: str) -> Any:
        made = client.post(PATH, json={"subject_id": subject}, headers={"Idempotency-Key": subject}).json()
        carry_out(service, model, made["id"])
        assert tick(service) == 1
        return client.get(f"{PATH}/{made['id']}/certificate").json()

    before = certified("ada")
    second = rotate_signing(service, monkeypatch)
    entries = download(client)
    keys = (second, *retired_keys(entries))
    assert verify_certificate(before, *keys) == verify_certificate(before, first)
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


@pytest.mark.both_engines
def test_a_rotation_that_was_cut_short_is_completed(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(service, 2)
    old = Signer.of(service.settings)
    with pytest.MonkeyPatch.context() as cut:
        cut.setattr("service.cli.commands.keys.adopt_secret", lambda _: 1 / 0)
        cut.setenv("EXPUNGE_HOME", str(service.settings.home))
        cut.setenv("EXPUNGE_DATABASE_URL", service.database.engine.url.render_as_string(hide_password=False))
        assert CliRunner().invoke(app, ["keys", "rotate-signing"]).exit_code != 0
    assert Signer.of(service.settings).verifier == old.verifier  # the file was not replaced
    assert old.verifier.checkpoint(head(client)) is not None  # and its holder still reads the newest head
    new = rotate_signing(service, monkeypatch)
    assert Signer.of(service.settings).verifier == new
    assert sum("key_rotated" in (entry["kind"] or "") for entry in download(client)) == 1


def test_nobody_but_the_old_key_names_its_successor() -> None:
    old, new, thief = (Signer("log.example/one", seed * 32) for seed in (b"o", b"n", b"t"))
    text = f"expunge: this key's successor\n{new.verifier}\n"
    assert succeed(old.verifier, [Succession(3, old.verifier, new.verifier, old.sign(text))]) == new.verifier
    for forged in (
        Succession(3, old.verifier, thief.verifier, thief.sign(f"expunge: this key's successor\n{thief.verifier}\n")),
        Succession(3, old.verifier, thief.verifier, old.sign(text)),
        Succession(3, old.verifier, thief.verifier, "x"),
    ):
        assert succeed(old.verifier, [forged]) == old.verifier


def exported(bodies: list[str]) -> list[dict[str, Any]]:
    return [{"index": n, "leaf_hash": tree.leaf_hash(b.encode()).hex(), "body": b} for n, b in enumerate(bodies)]


def test_a_stolen_retired_key_signs_no_later_head_that_is_believed() -> None:
    old, new = (Signer("log.example/one", seed * 32) for seed in (b"o", b"n"))
    handed = {
        "kind": "log.key_rotated",
        "retired": str(old.verifier),
        "key": str(new.verifier),
        "endorsement": old.sign(f"expunge: this key's successor\n{new.verifier}\n"),
    }
    entries = exported([canonical({"n": 0}), canonical(handed), *(canonical({"n": n}) for n in range(2, 6))])
    leaves = [bytes.fromhex(each["leaf_hash"]) for each in entries]
    newest = new.checkpoint(6, tree.root_of(leaves))
    at_handover = Handover(old, new).checkpoint(2, tree.root_of(leaves[:2]))
    assert verify(entries, newest, old.verifier, [at_handover, old.checkpoint(1, leaves[0])]).size == 6
    with pytest.raises(NotAuthentic, match="had retired"):
        verify(entries, newest, new.verifier, [old.checkpoint(4, tree.root_of(leaves[:4]))])
    with pytest.raises(NotAuthentic, match="not authentic"):
        verify(entries, old.checkpoint(6, tree.root_of(leaves)), new.verifier)
    with pytest.raises(NotAuthentic, match="malformed"):
        verify(exported([json.dumps({"kind": "log.key_rotated"}, separators=(",", ":"))]), newest, new.verifier)


def test_a_rotation_reads_everything_that_waits_first(service: Service) -> None:
    old, new = Signer.of(service.settings), Signer(service.settings.log_origin, b"n" * 32)
    with service.database.write() as session:
        for n in range(3):
            record(session, "default", "test.step", n=n)
    with service.database.write() as session:
        rotate(session, old, new)
    with service.database.write() as session:
        assert integrate(session, new) == 0
