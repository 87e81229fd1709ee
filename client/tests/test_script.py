"""``expunge-client``: what it sends, prints and returns."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from expunge_client.client import Expunge
from expunge_client.script import main

VECTOR = json.loads((Path(__file__).parents[2] / "tests/service/vectors/erasure-v1.json").read_text())


def test_a_certificate_is_verified_without_a_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certificate, key = tmp_path / "certificate.json", tmp_path / "log.vkey"
    certificate.write_text(json.dumps(VECTOR["certificate"]))
    key.write_text(VECTOR["key"])
    assert main(["verify", str(certificate), "--key", str(key)]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] is True
    certificate.write_text(json.dumps(VECTOR["certificate"] | {"payload": "e30="}))
    assert main(["verify", str(certificate), "--key", str(key)]) == 1
    assert "error: The signature is not valid." in capsys.readouterr().err


def test_a_deletion_is_asked_for_by_an_id_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EXPUNGE_URL", raising=False)
    assert main(["status", "1"]) == 1 and "Set EXPUNGE_URL" in capsys.readouterr().err
    monkeypatch.setenv("EXPUNGE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("EXPUNGE_API_KEY", "k")
    monkeypatch.setattr("sys.stdin", io.StringIO("ada\n"))
    asked: list[str] = []
    monkeypatch.setattr(Expunge, "delete", lambda _, *, subject_id: asked.append(subject_id) or {"id": "1"})
    assert main(["delete", "--subject", "-"]) == 0
    assert asked == ["ada"] and json.loads(capsys.readouterr().out) == {"id": "1"}
