"""``expunge certificate verify``: offline, with the public key alone; and what others' libraries say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from google.protobuf import json_format
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey
from typer.testing import CliRunner

from expunge_client.cli.main import app
from expunge_service.api.dependencies import Service
from expunge_service.audit.log import canonical
from expunge_service.audit.signed_note import Signer
from expunge_service.certificates.envelope import sign
from tests.service.audit.test_audit import download
from tests.service.audit.test_rotation import head, rotate_signing
from tests.service.certificates.test_certificates import PATH, carry_out, issued, tick
from tests.service.worlds import live_model

__all__ = ["issued"]
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def papers(service: Service, issued: Any, tmp_path: Path) -> dict[str, str]:
    """What a regulator holds: certificate, public key, the published file, and the opening that they were given."""
    made, envelope, version = issued
    (tmp_path / "certificate.json").write_text(json.dumps(envelope))
    (tmp_path / "log.vkey").write_text(f"{Signer.of(service.settings).verifier}\n")
    (tmp_path / "model.safetensors").write_bytes(b"forgotten")
    assert version.checkpoint in b64decode(envelope["payload"]).decode()
    names = {"certificate": "certificate.json", "key": "log.vkey", "file": "model.safetensors"}
    return {name: str(tmp_path / file) for name, file in names.items()} | {"opening": made["opening"]}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["certificate", "verify", *arguments])


def refusal(*arguments: str) -> str:
    """What the command says, where it refuses."""
    error = run(*arguments).exception
    assert getattr(error, "code", None) in (1, 2), error
    return f"{error.code} {error}"  # type: ignore[union-attr]


@ON_SQLITE
def test_a_regulator_verifies_a_certificate_with_neither_service_nor_database(papers: dict[str, str]) -> None:
    """A process of its own, with an empty environment, in an empty folder, and nothing to connect to."""
    root = str(Path(__file__).parents[3])
    folder = Path(papers["certificate"]).parent / "elsewhere"
    folder.mkdir()
    options = ["--checkpoint", papers["file"], "--opening", papers["opening"], "--subject", "ada", "--json"]
    command = [
        sys.executable,
        "-m",
        "expunge_client.cli.main",
        "certificate",
        "verify",
        papers["certificate"],
        "--key",
    ]
    nowhere = {"EXPUNGE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "EXPUNGE_URL": "http://127.0.0.1:1"}
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [*command, papers["key"], *options],
        env=kept | nowhere | {"PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["verified"] is True and facts["opening"] == "fits"
    assert facts["files"] == facts["subjects"] == ["digits/versions/2"]
    assert list(folder.iterdir()) == []


@ON_SQLITE
def test_what_does_not_fit_is_refused_and_said(papers: dict[str, str], tmp_path: Path) -> None:
    certificate, key = papers["certificate"], ["--key", papers["key"]]
    assert run(certificate, *key).exit_code == 0
    other = tmp_path / "other"
    other.write_text("something")
    assert "1 The certificate does not verify" in refusal(certificate, "--key", _key(tmp_path, b"x"))
    assert "1 " in refusal(certificate, *key, "--checkpoint", str(other))
    assert "about the person that you named" in refusal(
        certificate, *key, "--opening", papers["opening"], "--subject", "bob"
    )
    assert "about the person that you named" in refusal(certificate, *key, "--opening", "00" * 32, "--subject", "ada")
    assert "2 The opening is not hex" in refusal(certificate, *key, "--opening", "zz", "--subject", "ada")
    assert "2 An opening opens" in refusal(certificate, *key, "--subject", "ada")
    assert "2 An opening opens" in refusal(certificate, *key, "--opening", papers["opening"])
    assert "2 The public key" in refusal(certificate, "--key", str(other))
    assert "not a certificate" in refusal(str(other), *key)
    assert "not a certificate" in refusal(str(tmp_path / "none"), *key)
    assert "not an exported log" in refusal(certificate, *key, "--log", str(other))


def _key(folder: Path, seed: bytes) -> str:
    path = folder / f"{seed.hex()}.vkey"
    path.write_text(str(Signer("expunge.local/log", seed * 32).verifier))
    return str(path)


@ON_SQLITE
def test_every_changed_byte_of_the_payload_is_found(papers: dict[str, str], tmp_path: Path) -> None:
    envelope = json.loads(Path(papers["certificate"]).read_text())
    payload = b64decode(envelope["payload"])
    forged = tmp_path / "forged.json"
    for place in range(0, len(payload), max(1, len(payload) // 60)):
        changed = payload[:place] + bytes([payload[place] ^ 1]) + payload[place + 1 :]
        forged.write_text(json.dumps(envelope | {"payload": b64encode(changed).decode()}))
        assert refusal(str(forged), "--key", papers["key"]).startswith("1 ")


@ON_SQLITE
def test_a_statement_that_the_right_key_signed_over_a_false_proof_is_found(
    papers: dict[str, str], service: Service, tmp_path: Path
) -> None:
    statement = json.loads(b64decode(json.loads(Path(papers["certificate"]).read_text())["payload"]))
    statement["predicate"]["audit"]["entries"][0]["index"] += 1
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(sign(Signer.of(service.settings), canonical(statement).encode())))
    assert "proof of entry" in refusal(str(forged), "--key", papers["key"])


@ON_SQLITE
def test_a_certificate_of_a_retired_key_verifies_with_the_log(
    papers: dict[str, str], client: TestClient, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new.vkey"
    new.write_text(str(rotate_signing(service, monkeypatch)))
    export = tmp_path / "log.jsonl"
    lines = [*download(client), {"checkpoint": head(client)}]
    export.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(papers["certificate"], "--key", papers["key"]).exit_code == 0
    assert "does not verify" in refusal(papers["certificate"], "--key", str(new))
    assert run(papers["certificate"], "--key", str(new), "--log", str(export)).exit_code == 0
    export.write_text("".join(json.dumps(line) + "\n" for line in [*lines[1:-1], lines[-1]]))
    assert "entries, in some order" in refusal(papers["certificate"], "--key", str(new), "--log", str(export))


def test_a_request_that_named_samples_is_opened_by_its_samples(
    client: TestClient, service: Service, tmp_path: Path
) -> None:
    model = live_model(service)
    made = client.post(PATH, json={"sample_ids": ["ada-1", "ada-2"]}, headers={"Idempotency-Key": "k"}).json()
    carry_out(service, model, made["id"])
    assert tick(service) == 1
    (tmp_path / "c").write_text(client.get(f"{PATH}/{made['id']}/certificate").text)
    (tmp_path / "k").write_text(str(Signer.of(service.settings).verifier))
    options = [str(tmp_path / "c"), "--key", str(tmp_path / "k"), "--opening", made["opening"]]
    verified = run(*options, "--sample", "ada-2", "--sample", "ada-1")
    assert verified.exit_code == 0 and Signer.of(service.settings).verifier.fingerprint in verified.output
    assert "about the person" in refusal(*options, "--sample", "ada-2")


@ON_SQLITE
def test_in_toto_attestation_and_securesystemslib_parse_and_verify_it(service: Service, issued: Any) -> None:
    """The two reference libraries, over what the route answered."""
    _, answered, version = issued
    public = Signer.of(service.settings).verifier
    envelope = Envelope.from_dict(json.loads(json.dumps(answered)))
    keyid = answered["signatures"][0]["keyid"]
    key = SSlibKey(keyid, "ed25519", "ed25519", {"public": public.public_key.hex()})
    assert envelope.verify([key], 1) == {keyid: key}
    stranger = Signer("expunge.local/log", b"x" * 32).verifier.public_key.hex()
    with pytest.raises(VerificationError):
        envelope.verify([SSlibKey(keyid, "ed25519", "ed25519", {"public": stranger})], 1)
    assert envelope.payload_type == "application/vnd.in-toto+json"
    parsed = json_format.Parse(envelope.payload, statement_pb2.Statement())  # type: ignore[attr-defined]
    statement = Statement.copy_from_pb(parsed)
    statement.validate()
    (subject,) = statement.pb.subject
    assert (subject.name, subject.digest["sha256"]) == ("digits/versions/2", version.checkpoint)
    assert statement.pb.predicate_type == "urn:expunge:predicate:erasure:v2"
    assert statement.pb.predicate["models"][0]["method"] == "recollection"
