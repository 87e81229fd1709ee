"""The verifier of docs/verify.md, run alone against what a live service hands out."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from expunge_client.cli.client import signed_log
from tests.harness.stack import Stack

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "verify.py"
PERSON = "tiny-person-7"
pytestmark = pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
Papers = dict[str, str]


def verdict(papers: Papers, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script as a stranger would: in a folder without this project, and without its path."""
    for name in ("certificate", "key", "log"):
        (folder / name).write_text(papers[name])
    (folder / "verify.py").write_text(SCRIPT.read_text())
    command = [sys.executable, "-I", "verify.py", "certificate", "key", "log", papers["opening"]]
    command += [papers["subject"], papers["case"]]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def papers(stack: Stack) -> Papers:
    name = stack.live("tiny")
    accepted = stack.delete(name, subject_id=PERSON, case_id="DSR-1")
    stack.ended(accepted)
    path = f"/v1/deletion-requests/{accepted['id']}/certificate"
    stack.eventually(lambda: stack.http.get(path, headers=_key(stack)).status_code, lambda code: code == 200)
    certificate = stack.client.text(path)
    digest = hashlib.sha256(b64decode(json.loads(certificate)["payload"])).hexdigest()
    checkpoint, entries = stack.eventually(lambda: signed_log(stack.client), lambda found: digest in str(found[1]))
    lines = [json.dumps(entry) for entry in entries]
    return {
        "certificate": certificate,
        "key": (stack.home / "log.vkey").read_text(),
        "log": "\n".join([*lines, json.dumps({"checkpoint": checkpoint})]) + "\n",
        "opening": accepted["opening"],
        "subject": PERSON,
        "case": "DSR-1",
    }


def _key(stack: Stack) -> dict[str, str]:
    return {"Authorization": f"Bearer {stack.account.api_key}"}


def test_a_strangers_verifier_accepts_what_the_service_hands_out(papers: Papers, tmp_path: Path) -> None:
    done = verdict(papers, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("verified:") and len(done.stdout.splitlines()) >= 7
    assert "the log has this claim of version 2 of" in done.stdout


def _changed(papers: Papers, change: Callable[[dict[str, Any]], object]) -> Papers:
    """The certificate with an edited statement; its signature is left as it was."""
    envelope = json.loads(papers["certificate"])
    statement = json.loads(b64decode(envelope["payload"]))
    change(statement)
    envelope["payload"] = b64encode(json.dumps(statement).encode()).decode()
    return papers | {"certificate": json.dumps(envelope)}


def _log(papers: Papers, change: Callable[[list[dict[str, Any]]], object]) -> Papers:
    lines = [json.loads(line) for line in papers["log"].splitlines()]
    change(lines)
    return papers | {"log": "".join(json.dumps(line) + "\n" for line in lines)}


TAMPERED: dict[str, Callable[[Papers], Papers]] = {
    "certificate": lambda papers: _changed(papers, lambda told: told["predicate"]["models"][0].update(samples=1)),
    "digest": lambda papers: _changed(papers, lambda told: told["subject"][0]["digest"].update(sha256="0" * 64)),
    "log entry": lambda papers: _log(papers, lambda lines: lines[1].update(body=lines[1]["body"] + " ")),
    "log leaf": lambda papers: _log(papers, lambda lines: lines[1].update(leaf_hash="0" * 64, body=None)),
    "log order": lambda papers: _log(papers, lambda lines: lines.insert(0, lines.pop(1))),
    "log removed": lambda papers: _log(papers, lambda lines: lines.pop(0)),
    "log head": lambda papers: _log(papers, lambda lines: lines[-1].update(checkpoint=_grown(lines[-1]["checkpoint"]))),
    "opening": lambda papers: papers | {"opening": "0" * 64},
    "case": lambda papers: papers | {"case": "DSR-2"},
    "subject": lambda papers: papers | {"subject": "tiny-person-8"},
    "key": lambda papers: papers | {"key": _other(papers["key"])},
}


def _grown(note: str) -> str:
    return re.sub(r"\n(\d+)\n", lambda found: f"\n{int(found[1]) + 1}\n", note, count=1)


def _other(key: str) -> str:
    name, key_id, public = key.strip().split("+", 2)
    raw = bytearray(b64decode(public))
    raw[5] ^= 1
    return f"{name}+{key_id}+{b64encode(bytes(raw)).decode()}"


@pytest.mark.parametrize("what", TAMPERED)
def test_whatever_is_tampered_with_is_not_verified(papers: Papers, tmp_path: Path, what: str) -> None:
    done = verdict(TAMPERED[what](papers), tmp_path)
    assert done.returncode != 0, done.stdout


def test_the_page_names_every_field_of_the_predicate(papers: Papers) -> None:
    page = (ROOT / "docs" / "verify.md").read_text()
    predicate = json.loads(b64decode(json.loads(papers["certificate"])["payload"]))["predicate"]
    fields = {*predicate, *predicate["models"][0], *predicate["audit"]}
    assert not [field for field in sorted(fields) if f"`{field}`" not in page]


def test_the_verifier_knows_nothing_of_this_project(stack: Stack) -> None:
    text = SCRIPT.read_text()
    imported = re.findall(r"^(?:from|import) ([a-z0-9_]+)", text, re.MULTILINE)
    assert set(imported) - sys.stdlib_module_names == {"cryptography"}
