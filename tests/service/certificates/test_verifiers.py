"""Two verifiers of certificates, logs and exports, and two of certificates alone, one verdict each.

``expunge certificate verify``, which is ``expunge_client.verify_certificate``; ``examples/verify.py``; and where no log
is given the check with which the service signs, and the script of the page ``/verify``, run by node. They share no
code. Each vector here says what all must answer. Where
nothing less would do, the changes are those of somebody who holds the signing key. What is then left to contradict the
certificate is the log.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import random
import shutil
import subprocess
import sys
import textwrap
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import expunge_client
from expunge_client import verify_certificate
from expunge_client.cli.commands.certificate import verify
from expunge_client.cli.output import CommandError
from expunge_service.api.dependencies import Service
from expunge_service.audit import merkle
from expunge_service.audit.log import canonical
from expunge_service.audit.signed_note import NotAuthentic, Signer, Verifier
from expunge_service.audit.succession import ROTATED, signatures
from expunge_service.certificates import envelope
from expunge_service.certificates.envelope import FORMATS, payload_digest, sign
from expunge_service.requests.intake import Order, commitment
from tests.harness import log_tree
from tests.service.audit.test_audit import download
from tests.service.audit.test_light_client import changed
from tests.service.audit.test_rotation import head, rotate_signing
from tests.service.certificates.test_certificates import PATH, carry_out, tick
from tests.service.worlds import live_model

ROOT = Path(__file__).parents[3]
VECTORS = Path(__file__).parents[1] / "vectors"
PAGE = ROOT / "service" / "expunge_service" / "console" / "static" / "verify.html"
EXAMPLE = compile((ROOT / "examples" / "verify.py").read_text(), "verify.py", "exec")
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
THIEF = Signer("expunge.local/log", b"t" * 32)
Json = dict[str, Any]


@dataclass(frozen=True)
class Papers:
    """What a verifier is handed: a certificate, a public key, and the lines of an export or none."""

    certificate: Any
    """as bytes: the file as it is"""
    key: str
    log: tuple[Any, ...] | None
    export: bytes | None = None
    """the export, where it is not just those lines"""

    @property
    def file(self) -> bytes:
        return self.certificate if isinstance(self.certificate, bytes) else json.dumps(self.certificate).encode()

    def write(self, folder: Path) -> tuple[Path, Path, Path | None]:
        (folder / "certificate").write_bytes(self.file)
        (folder / "key").write_bytes(self.key.encode())
        if self.log is None:
            return folder / "certificate", folder / "key", None
        lines = "".join(json.dumps(line) + "\n" for line in self.log)
        (folder / "log").write_bytes(lines.encode() if self.export is None else self.export)
        return folder / "certificate", folder / "key", folder / "log"


def by_command(certificate: Path, key: Path, log: Path | None) -> bool:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            verify(certificate, key, log)
    except CommandError:
        return False
    assert ("claim not compared" if log is None else "compared with the log of ") in said.getvalue()
    return True


def by_service(certificate: Path, key: Path) -> bool:
    try:
        envelope.verify(envelope.parsed(certificate.read_bytes()), Verifier.load(key))
    except ValueError:
        return False
    return True


def by_example(certificate: Path, key: Path, log: Path | None) -> bool:
    """In this process, as its own main module. Whatever else than an exit it raises would be a traceback."""
    said, arguments = io.StringIO(), [str(each) for each in (certificate, key, log) if each is not None]
    before, sys.argv = sys.argv, ["verify.py", *arguments]
    try:
        with contextlib.redirect_stdout(said):
            exec(EXAMPLE, {"__name__": "__main__"})
    except SystemExit as ended:
        assert str(ended.code).startswith("NOT SO: ")  # a text: exit code 1
        return False
    finally:
        sys.argv = before
    assert ("claim not compared with the log" in said.getvalue()) == (log is None)
    return True


def by_page(papers: Mapping[str, Papers], trusted: Callable[[Papers], str] = lambda each: each.key) -> dict[str, bool]:
    """Verdicts on the certificates without a log, all from one process; ``trusted``: what is typed for the key."""
    alone = {name: each for name, each in papers.items() if each.log is None}
    asked = [_asked(each.file, trusted(each)) for each in alone.values()]
    return {name: refused is None for name, refused in zip(alone, judged_by_page(asked), strict=True)}


def _asked(file: bytes, trusted: str) -> Json:
    return {"certificate": b64encode(file).decode(), "trusted": trusted}


def judged_by_page(asked: Sequence[Json]) -> list[str | None]:
    """What ``vectors/verify_page.mjs`` says: None where all fits, else what does not. Skips where node is missing."""
    if shutil.which("node") is None:
        pytest.skip("unverified here: node is not installed")
    done = subprocess.run(
        ["node", VECTORS / "verify_page.mjs", PAGE], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    found: list[str | None] = json.loads(done.stdout)
    return found


def verdicts(papers: Papers, folder: Path) -> dict[str, bool]:
    certificate, key, log = papers.write(folder)
    said = {"command": by_command(certificate, key, log), "example": by_example(certificate, key, log)}
    return said if log else said | {"service": by_service(certificate, key)}


def all_verdicts(papers: Mapping[str, Papers], folder: Path) -> dict[str, dict[str, bool]]:
    said = {name: verdicts(each, folder) for name, each in papers.items()}
    if shutil.which("node"):
        for name, verdict in by_page(papers).items():
            said[name]["page"] = verdict
    return said


# --- an installation that rotated its key between two certificates ---------------------------------------------------


@dataclass(frozen=True)
class World:
    """The log's texts, the keys, and the certificates of before and after the rotation."""

    old: Signer
    new: Signer
    bodies: tuple[str, ...]
    before: Json
    after: Json
    export: tuple[Json, ...]

    def papers(self, certificate: Any, log: bool = True, key: Signer | None = None) -> Papers:
        return Papers(certificate, str((key or self.new).verifier), self.export if log else None)


@pytest.fixture
def world(client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch) -> World:
    return rotated_installation(client, service, monkeypatch)


def rotated_installation(client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch) -> World:
    model, old = live_model(service), Signer.of(service.settings)

    def certified(subject: str, first: int) -> Json:
        made = client.post(PATH, json={"subject_id": subject}, headers={"Idempotency-Key": subject}).json()
        carry_out(service, model, made["id"], first=first)
        assert tick(service) == 1
        answer: Json = client.get(f"{PATH}/{made['id']}/certificate").json()
        return answer

    before = certified("ada", 0)
    rotate_signing(service, monkeypatch)
    after = certified("bob", 2)
    tick(service)
    lines = [{name: value for name, value in line.items() if name != "actor_name"} for line in download(client)]
    bodies = tuple(line["body"] for line in lines)
    return World(old, Signer.of(service.settings), bodies, before, after, (*lines, {"checkpoint": head(client)}))


def lines_of(bodies: list[str]) -> list[Json]:
    return [{"index": n, "leaf_hash": merkle.leaf_hash(b.encode()).hex(), "body": b} for n, b in enumerate(bodies)]


def root_of(lines: list[Json]) -> bytes:
    return log_tree.root_of([bytes.fromhex(line["leaf_hash"]) for line in lines])


def exported(bodies: list[str], signer: Signer) -> tuple[Json, ...]:
    """An export of these texts under a head that this key signed over all of them."""
    lines = lines_of(bodies)
    return (*lines, {"checkpoint": signer.checkpoint(len(lines), root_of(lines))})


def statement_of(envelope: Json) -> Json:
    found: Json = json.loads(b64decode(envelope["payload"]))
    return found


def signed(signer: Signer, statement: Json) -> Json:
    return sign(signer, json.dumps(statement).encode())


def proved_in(statement: Json, bodies: list[str], signer: Signer, size: int | None = None) -> Json:
    """The statement with the proofs of its entries (by their index) in a log of these texts, under this key's head."""
    made, lines = copy.deepcopy(statement), lines_of(bodies)[:size]
    node = log_tree.in_memory([bytes.fromhex(line["leaf_hash"]) for line in lines])
    audit = made["predicate"]["audit"]
    audit["checkpoint"] = signer.checkpoint(len(lines), root_of(lines))
    for entry in audit["entries"]:
        entry["leaf_hash"] = lines[entry["index"]]["leaf_hash"]
        entry["hashes"] = [
            b64encode(each).decode() for each in merkle.inclusion_proof(node, len(lines), entry["index"])
        ]
        if entry["body"] is not None:
            entry["body"] = bodies[entry["index"]]
    return made


def rewritten(world: World, change: Callable[[Json, Json], object]) -> Papers:
    """Everything made anew with the signing key after one change to the publication's entry and to the statement.

    Only what the log's text and the statement say of each other is left to judge.
    """
    statement, bodies = statement_of(world.after), list(world.bodies)
    (place,) = (e["index"] for e in statement["predicate"]["audit"]["entries"] if e["kind"] == "version.published")
    entry = json.loads(bodies[place])
    change(entry, statement["predicate"]["models"][0])
    bodies[place] = canonical(entry)
    _name_files(statement)
    size = len(bodies) - 1  # the last entry is that the certificate was issued
    certificate = signed(world.new, proved_in(statement, bodies, world.new, size))
    issued = json.loads(bodies[-1]) | {"payload_sha256": payload_digest(certificate)}
    return Papers(certificate, str(world.new.verifier), exported([*bodies[:-1], canonical(issued)], world.new))


# --- what all three accept -------------------------------------------------------------------------------------------


def accepted(world: World) -> dict[str, Papers]:
    found = {
        "before, its key": world.papers(world.before, log=False, key=world.old),
        "after, its key": world.papers(world.after, log=False),
        "before, the first key and the log": world.papers(world.before, key=world.old),
        "before, the second key and the log": world.papers(world.before),
        "after, the first key and the log": world.papers(world.after, key=world.old),
        "after, the second key and the log": world.papers(world.after),
        **{
            f"key with spaces around{', log' if log else ''}": replace(
                world.papers(world.after, log=log), key=f" \t {world.new.verifier}\r\n\n"
            )
            for log in (False, True)
        },
        "version is 2^53 - 1": world.papers(_version(world, (1 << 53) - 1), log=False),
        "keyid of nobody": world.papers(
            world.after | {"signatures": [world.after["signatures"][0] | {"keyid": "00000000"}]}, log=False
        ),
        "made anew": rewritten(world, lambda entry, part: None),
        **signed_in_time(world),
        "claim digest of before": rewritten(
            world, lambda entry, part: entry.update(claim_sha256=_digest_of_before(part["claim"]))
        ),
        "odd numbers": rewritten(world, _odd_numbers),
        "restored": rewritten_kind(world),
        **claiming(world, COVERED),
    }
    file, payload = json.dumps(world.after), json.dumps(statement_of(world.after))
    for name, extra in STRICT.items():
        beside, inside = (each.encode().replace(b"{", b'{"more":%s,' % extra, 1) for each in (file, payload))
        found[f"beside the signature: {name}"] = world.papers(beside, log=False)
        found[f"signed: {name}"] = world.papers(sign(world.new, inside), log=False)
    vector = json.loads((VECTORS / "erasure-v1.json").read_text())
    for log in (None, tuple(vector["log"])):
        found[f"format v1, {'no log' if log is None else 'its log'}"] = Papers(
            vector["certificate"], vector["key"], log
        )
    return found


WORLD = {"walls": "new root", "code": "c" * 64, "public_files": [], "sources": [], "own_readers": 0, "repeats": True}
COVERED: dict[str, Json] = {
    "exact, shown": {"guarantee": "exact", "operators_word": False, "world": WORLD},
    "exact, shown, deterministic": {"guarantee": "exact", "deterministic": True, "world": WORLD},
    "exact, landlock alone, on the operator's word": {
        "guarantee": "exact",
        "operators_word": True,
        "world": WORLD | {"walls": "landlock alone"},
    },
    "exact, own reader, on the operator's word": {
        "guarantee": "exact",
        "operators_word": True,
        "world": WORLD | {"own_readers": 1},
    },
    "exact, walls of a later release, on the operator's word": {
        "guarantee": "exact",
        "operators_word": True,
        "world": {"walls": "a moat"},
    },
    "proved, no walls": {"guarantee": "proved", "world": WORLD | {"walls": "none"}},
    "exact, no world": {"guarantee": "exact", "deterministic": True, "world": None},
}
UNCOVERED: dict[str, Json] = {
    **{
        f"exact, {name}": {"guarantee": "exact", "operators_word": False, "world": record}
        for name, record in {
            "landlock alone": WORLD | {"walls": "landlock alone"},
            "no walls": WORLD | {"walls": "none"},
            "walls of a later release": WORLD | {"walls": "a moat"},
            "walls in a list": WORLD | {"walls": ["new root"]},
            "own reader": WORLD | {"own_readers": 1},
            "readers are false": WORLD | {"own_readers": False},
            "readers are a float": WORLD | {"own_readers": 0.0},
            "readers are missing": {name: value for name, value in WORLD.items() if name != "own_readers"},
            "a world that is a text": "new root",
            "a world that is a list": [WORLD],
            "an empty world": {},
        }.items()
    },
    "exact by its old word, no walls": {"basis": "exact", "world": WORLD | {"walls": "none"}},
    "the word is a text": {"guarantee": "exact", "operators_word": "true", "world": WORLD | {"walls": "none"}},
    "deterministic, two worlds differed": {
        "guarantee": "exact",
        "deterministic": True,
        "world": WORLD | {"repeats": False},
    },
    "deterministic, untried": {
        "guarantee": "exact",
        "operators_word": True,
        "deterministic": True,
        "world": WORLD | {"repeats": None},
    },
}


def claiming(world: World, claims: Mapping[str, Json]) -> dict[str, Papers]:
    """Papers with each of these claims, with its digest in the log, by somebody who has the signing key."""
    found: dict[str, Papers] = {}
    for name, claim in claims.items():

        def change(entry: Json, part: Json, claim: Json = claim) -> None:
            part["claim"] = claim
            entry["claim_sha256"] = _digest_of_before(claim)

        papers = rewritten(world, change)
        found |= {f"claim: {name}, log": papers, f"claim: {name}": replace(papers, log=None)}
    return found


def _version(world: World, number: int) -> Json:
    statement = statement_of(world.after)
    statement["predicate"]["models"][0]["version"] = number
    _name_files(statement)
    return signed(world.new, statement)


def signed_in_time(world: World) -> dict[str, Papers]:
    """The retired key signs heads up to the entry that retired it, that one included."""
    place = next(n for n, body in enumerate(world.bodies) if json.loads(body)["kind"] == ROTATED)
    found = {}
    for size in (place, place + 1):
        made = signed(world.old, proved_in(statement_of(world.before), list(world.bodies), world.old, size))
        export = exported([*world.bodies, issued_of(world, made)], world.new)
        for name, trusted in {"old": world.old, "new": world.new}.items():
            found[f"in time, {size}, the {name} key is trusted"] = Papers(made, str(trusted.verifier), export)
    return found


def _digest_of_before(claim: Json) -> str:
    text = json.dumps(claim, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _odd_numbers(entry: Json, part: Json) -> None:
    """Numbers that languages write in different ways; their canonical form is written out here."""
    part["claim"] = {"é": [1e21, 1e-7, 1e-5, 123456789012345680000, -0.0, 5e-324], "\U0001f600": 1.0, "\ufb33": True}
    text = '{"é":[1e+21,1e-7,0.00001,123456789012345680000,0,5e-324],"\U0001f600":1,"\ufb33":true}'  # by UTF-16
    entry["claim_sha256"] = hashlib.sha256(text.encode()).hexdigest()


def rewritten_kind(world: World) -> Papers:
    """The version was adopted by a restore."""
    statement, bodies = statement_of(world.after), list(world.bodies)
    for entry in statement["predicate"]["audit"]["entries"]:
        if entry["kind"] == "version.published":
            entry["kind"] = "version.restored"
            bodies[entry["index"]] = canonical(json.loads(bodies[entry["index"]]) | {"kind": "version.restored"})
    size = len(bodies) - 1
    certificate = signed(world.new, proved_in(statement, bodies, world.new, size))
    issued = json.loads(bodies[-1]) | {"payload_sha256": payload_digest(certificate)}
    return Papers(certificate, str(world.new.verifier), exported([*bodies[:-1], canonical(issued)], world.new))


@ON_SQLITE
def test_all_accept_what_is_right(world: World, tmp_path: Path) -> None:
    said = all_verdicts(accepted(world), tmp_path)
    assert {name: each for name, each in said.items() if not all(each.values())} == {}
    assert {len(each) for each in said.values()} == {2, 4 if shutil.which("node") else 3}


@ON_SQLITE
def test_the_command_says_which_walls_stood_and_what_is_vouched_for(world: World, tmp_path: Path) -> None:
    papers, shown = claiming(world, COVERED), {}
    for name in papers:
        certificate, key, log = papers[name].write(tmp_path)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            verify(certificate, key, log)
        shown[name.removeprefix("claim: ")] = " ".join(said.getvalue().split())
    vouched = f"; two runs were equal; the operator vouches for code sha256:{'c' * 64}, 0 public files, 0 own readers"
    assert f"digits: behind a new root{vouched}" in shown["exact, shown"]
    assert f"digits: walls on the operator's word (none){vouched}" in shown["proved, no walls"]
    assert (
        "walls on the operator's word (a moat); not run twice"
        in shown["exact, walls of a later release, on the operator's word"]
    )
    assert "worlds" not in shown["exact, no world"]


# --- what all refuse -------------------------------------------------------------------------------------------


def _audit(statement: Json) -> Json:
    found: Json = statement["predicate"]["audit"]
    return found


def _entry(statement: Json, place: int = 0) -> Json:
    found: Json = _audit(statement)["entries"][place]
    return found


ENVELOPE: dict[str, Callable[[Json], object]] = {
    "empty": lambda e: e.clear(),
    "no payload": lambda e: e.pop("payload"),
    "payload is no base64": lambda e: e.update(payload="!"),
    "payload is a number": lambda e: e.update(payload=5),
    "payload with a line feed": lambda e: e.update(payload=e["payload"][:76] + "\n" + e["payload"][76:]),
    "payload without padding": lambda e: e.update(payload=e["payload"].rstrip("=") + "\n"),
    "payload edited": lambda e: e.update(payload=b64encode(b64decode(e["payload"]).replace(b"2", b"3", 1)).decode()),
    "another payload type": lambda e: e.update(payloadType="text/plain"),
    "no payload type": lambda e: e.pop("payloadType"),
    "no signatures": lambda e: e.update(signatures=[]),
    "signatures are missing": lambda e: e.pop("signatures"),
    "signature of another": lambda e: e["signatures"][0].update(sig=THIEF.sign("x\n").split()[-1]),
    "signature with a line feed": lambda e: e["signatures"][0].update(sig=e["signatures"][0]["sig"] + "\n"),
    "signature is cut": lambda e: e["signatures"][0].update(sig=e["signatures"][0]["sig"][:-4]),
    "signature is a list": lambda e: e["signatures"][0].update(sig=[]),
    "no key id": lambda e: e["signatures"][0].pop("keyid"),
    "another last letter": lambda e: e["signatures"][0].update(sig=_other_letter(e["signatures"][0]["sig"])),
}


def _other_letter(text: str) -> str:
    """The last letter holds bits that belong to no byte."""
    found = f"{text[:-3]}{chr(ord(text[-3]) + 1)}=="
    assert b64decode(found) == b64decode(text)
    return found


STATEMENT: dict[str, Callable[[Json], object]] = {
    "another statement type": lambda s: s.update(_type="https://in-toto.io/Statement/v2"),
    "no statement type": lambda s: s.pop("_type"),
    "any predicate type": lambda s: s.update(predicateType="https://slsa.dev/provenance/v1"),
    "a later format": lambda s: s.update(predicateType="urn:expunge:predicate:erasure:v3"),
    "a format in a list": lambda s: s.update(predicateType=[FORMATS[-1]]),
    "no format": lambda s: s.pop("predicateType"),
    "no predicate": lambda s: s.pop("predicate"),
    "no audit": lambda s: s["predicate"].pop("audit"),
    "no request": lambda s: s["predicate"].pop("request"),
    "another request": lambda s: s["predicate"].update(request="0" * 32),
    "no models": lambda s: s["predicate"].pop("models"),
    "models are none": lambda s: s["predicate"].update(models=[]),
    "a model too many": lambda s: s["predicate"]["models"].append(s["predicate"]["models"][0]),
    "another file": lambda s: s["subject"][0]["digest"].update(sha256="0" * 64),
    "a file under another name": lambda s: s["subject"][0].update(name="digits/versions/1"),
    "a file too many": lambda s: s["subject"].append(s["subject"][0]),
    "no file": lambda s: s.update(subject=[]),
    "the model's checkpoint alone": lambda s: s["predicate"]["models"][0].update(checkpoint_sha256="0" * 64),
    "no head": lambda s: _audit(s).pop("checkpoint"),
    "head is none": lambda s: _audit(s).update(checkpoint=None),
    "head is no note": lambda s: _audit(s).update(checkpoint="forged"),
    "head of another size": lambda s: _audit(s).update(checkpoint=_audit(s)["checkpoint"].replace("\n", "\n1", 1)),
    "head with a leading zero": lambda s: _audit(s).update(checkpoint=_audit(s)["checkpoint"].replace("\n", "\n0", 1)),
    "head without its last line feed": lambda s: _audit(s).update(checkpoint=_audit(s)["checkpoint"][:-1]),
    "head of another log": lambda s: _audit(s).update(checkpoint="x" + _audit(s)["checkpoint"]),
    "no entries": lambda s: _audit(s).update(entries=[]),
    "entries are missing": lambda s: _audit(s).pop("entries"),
    "no acceptance": lambda s: _audit(s)["entries"].pop(0),
    "no completion": lambda s: _audit(s)["entries"].pop(),
    "completion without its text": lambda s: _entry(s, -1).update(body=None),
    "acceptance without its text": lambda s: _entry(s).update(body=None),
    "completion that is another entry": lambda s: _audit(s)["entries"].__setitem__(
        -1, copy.deepcopy(_entry(s)) | {"kind": "request.completed"}
    ),
    "completion by its word alone": lambda s: _entry(s, -1).update(body=None, kind="request.completed"),
    "a publication that is called completion": lambda s: (
        _audit(s)["entries"].pop(),
        _entry(s, 1).update(kind="request.completed"),
    ),
    "kind is missing": lambda s: _entry(s).pop("kind"),
    "text is missing": lambda s: _entry(s).pop("body"),
    "text is a number": lambda s: _entry(s).update(body=5),
    "text of another entry": lambda s: _entry(s).update(body='{"kind":"request.accepted","request":"x"}'),
    "text with a space more": lambda s: _entry(s).update(body=_entry(s)["body"] + " "),
    "text with half a letter": lambda s: _entry(s).update(body="\ud800"),
    "index is another": lambda s: _entry(s).update(index=_entry(s)["index"] + 1),
    "index is negative": lambda s: _entry(s).update(index=-1),
    "index is huge": lambda s: _entry(s).update(index=1 << 80),
    "index is a float": lambda s: _entry(s).update(index=float(_entry(s)["index"])),
    "index is a text": lambda s: _entry(s).update(index=str(_entry(s)["index"])),
    "index is true": lambda s: _entry(s).update(index=True),
    "index is missing": lambda s: _entry(s).pop("index"),
    "leaf is another": lambda s: _entry(s, 1).update(leaf_hash="0" * 64),
    "leaf in capitals": lambda s: _entry(s).update(leaf_hash=_entry(s)["leaf_hash"].upper()),
    "leaf with a space": lambda s: _entry(s).update(
        leaf_hash=_entry(s)["leaf_hash"][:2] + " " + _entry(s)["leaf_hash"][2:]
    ),
    "leaf is short": lambda s: _entry(s, 1).update(leaf_hash="00"),
    "leaf is a number": lambda s: _entry(s, 1).update(leaf_hash=0),
    "proof is missing": lambda s: _entry(s).pop("hashes"),
    "proof is empty": lambda s: _entry(s).update(hashes=[]),
    "proof is a text": lambda s: _entry(s).update(hashes="AAAA"),
    "a hash too few": lambda s: _entry(s)["hashes"].pop(),
    "a hash too few in front": lambda s: _entry(s)["hashes"].pop(0),
    "a hash too many": lambda s: _entry(s)["hashes"].append(_entry(s)["hashes"][0]),
    "a hash too many in front": lambda s: _entry(s)["hashes"].insert(0, _entry(s)["hashes"][0]),
    "an empty hash too many in front": lambda s: _entry(s)["hashes"].insert(0, ""),
    "hashes in another order": lambda s: _entry(s)["hashes"].reverse(),
    "a hash with a line feed": lambda s: _entry(s)["hashes"].__setitem__(0, _entry(s)["hashes"][0] + "\n"),
    "a hash with a line feed inside": lambda s: _entry(s)["hashes"].__setitem__(0, _wrapped(_entry(s)["hashes"][0])),
    "a hash with other spare bits": lambda s: _entry(s)["hashes"].__setitem__(0, _spare(_entry(s)["hashes"][0])),
    "a hash by the alphabet of URLs": lambda s: _entry(s)["hashes"].__setitem__(0, "__8" + _entry(s)["hashes"][0][3:]),
    "a hash of bytes": lambda s: _entry(s)["hashes"].__setitem__(0, 5),
    "an inner node as an entry": lambda s: _inner_node(s),
}
"""somebody with the signing key writes this into a certificate; it is refused without a log, and with it"""


NO_JSON: dict[str, bytes] = {
    "no number": b"NaN",
    "no end": b"Infinity",
    "no beginning": b"-Infinity",
    "an exponent without end": b"1e999",
    "310 digits": b"1" + b"0" * 309,
    "5,000 digits": b"7" * 5000,
    "101 levels": b"[" * 100 + b"]" * 100,
    "101 levels of objects": b'{"":' * 99 + b"{}" + b"}" * 99,
    "20,000 levels": b"[" * 20_000 + b"]" * 20_000,
    "a byte that is no UTF-8": b'"\xff"',
    "half a letter in UTF-8": b'"\xed\xa0\x80"',
    "half a letter": b'"\\ud800"',
    "half a letter in a name": b'{"\\udc00":1}',
    "a byte-order mark": b"\xef\xbb\xbf1",
    "a leading zero": b"01",
    "a comma too many": b"[1,]",
    "a line feed in a text": b'"\n"',
}
"""values that are no strict JSON, though some language reads them; each lies one level deep"""
STRICT: dict[str, bytes] = {
    "309 digits": b"1" + b"0" * 308,
    "many digits behind the point": b"0." + b"7" * 5000,
    "100 levels": b"[" * 99 + b"]" * 99,
    "brackets in a text": b'"' + b"[{" * 200 + b'\\"["',
    "a whole letter in two halves": b'"\\ud83d\\ude00"',
    "letters of two to four bytes": '"é\ufb33\U0001f600\ufeff"'.encode(),
}

TYPES: dict[str, Callable[[Json], object]] = {
    "version is true": lambda p: p["models"][0].update(version=True),
    "version is a text": lambda p: p["models"][0].update(version="2"),
    "version is none": lambda p: p["models"][0].update(version=None),
    "version is a float": lambda p: p["models"][0].update(version=2.0),
    "version is 2^53": lambda p: p["models"][0].update(version=1 << 53),
    "version is huge": lambda p: p["models"][0].update(version=1 << 80),
    "model is a list": lambda p: p["models"][0].update(model=["a"]),
    "model is a number": lambda p: p["models"][0].update(model=5),
    "model is none": lambda p: p["models"][0].update(model=None),
    "checkpoint is none": lambda p: p["models"][0].update(checkpoint_sha256=None),
    "checkpoint is a number": lambda p: p["models"][0].update(checkpoint_sha256=5),
    "models are an object": lambda p: p.update(models={}),
    "models are a text": lambda p: p.update(models=""),
    "models are null": lambda p: p.update(models=None),
    "a publication of no kind": lambda p: p["audit"]["entries"][1].update(kind=None),
    "a publication of a kind that is a number": lambda p: p["audit"]["entries"][1].update(kind=5),
}
"""what somebody with the signing key may write, and name the files by it"""


def _name_files(statement: Json) -> None:
    statement["subject"] = [
        {"name": f"{part['model']}/versions/{part['version']}", "digest": {"sha256": part["checkpoint_sha256"]}}
        for part in statement["predicate"]["models"] or ()
    ]


def _wrapped(text: str) -> str:
    return f"{text[:20]}\n{text[20:]}"


def _spare(text: str) -> str:
    """32 bytes have two spare bits in their last letter."""
    found = f"{text[:-2]}{chr(ord(text[-2]) + 1)}="
    assert b64decode(found) == b64decode(text)
    return found


def _inner_node(statement: Json) -> None:
    """The entry's parent in the tree instead of the entry, and the rest of its proof."""
    entry = _entry(statement, 1)
    leaf, sibling = bytes.fromhex(entry["leaf_hash"]), b64decode(entry["hashes"].pop(0))
    pair = (leaf, sibling) if entry["index"] % 2 == 0 else (sibling, leaf)
    entry["leaf_hash"], entry["body"] = merkle.node_hash(*pair).hex(), None


LOG: dict[str, Callable[[list[Any]], object]] = {
    "first line is missing": lambda log: log.pop(0),
    "a line is missing": lambda log: log.pop(len(log) // 2),
    "last line is missing": lambda log: log.pop(-2),
    "head is missing": lambda log: log.pop(),
    "head is empty": lambda log: log.__setitem__(-1, {}),
    "head is none": lambda log: log.__setitem__(-1, {"checkpoint": None}),
    "head is a list": lambda log: log.__setitem__(-1, {"checkpoint": [1]}),
    "head of another size": lambda log: log[-1].update(checkpoint=log[-1]["checkpoint"].replace("\n", "\n1", 1)),
    "head of a thief": lambda log: log[-1].update(checkpoint=THIEF.checkpoint(len(log) - 1, root_of(log[:-1]))),
    "lines in another order": lambda log: log.insert(0, log.pop(1)),
    "a line twice": lambda log: log.insert(1, copy.deepcopy(log[0])),
    "a line behind the head's": lambda log: log.insert(-1, lines_of(["{}"] * len(log))[-1]),
    "two lines behind the head's": lambda log: log.__setitem__(slice(-1, -1), lines_of(["{}"] * (len(log) + 1))[-2:]),
    "a text edited": lambda log: log[1].update(body=log[1]["body"] + " "),
    "a text and its hash edited": lambda log: log[1].update(lines_of(["x", "y"])[1]),
    "a text is a number": lambda log: log[1].update(body=1),
    "a text with half a letter": lambda log: log[1].update(body="\ud800"),
    "a text is missing": lambda log: log[1].pop("body"),
    "a leaf is another": lambda log: log[1].update(leaf_hash="0" * 64, body=None),
    "a leaf in capitals": lambda log: log[1].update(leaf_hash=log[1]["leaf_hash"].upper()),
    "a leaf with a space": lambda log: log[1].update(leaf_hash=" " + log[1]["leaf_hash"]),
    "a leaf is missing": lambda log: log[1].pop("leaf_hash"),
    "an index is a float": lambda log: log[1].update(index=1.0),
    "an index is true": lambda log: log[1].update(index=True),
    "an index is a text": lambda log: log[1].update(index="1"),
    "an index is missing": lambda log: log[1].pop("index"),
    "a line is a list": lambda log: log.__setitem__(1, []),
    "a line is a number": lambda log: log.__setitem__(1, 1),
    "a line is null": lambda log: log.__setitem__(1, None),
    "every text is hidden": lambda log: [line.update(body=None) for line in log[:-1]],
    "the publication's text is hidden": lambda log: _of(log, "version.published").update(body=None),
    "the certificate's own entry is hidden": lambda log: _of(log, "certificate.issued").update(body=None),
    "nothing": lambda log: log.clear(),
}
"""what anybody may do to an export, without a key"""


def _of(log: list[Json], kind: str) -> Json:
    """The last line of that kind."""
    return next(line for line in reversed(log[:-1]) if json.loads(line["body"])["kind"] == kind)


ENTRY: dict[str, Callable[[Json, Json], object]] = {
    "another checkpoint in the log": lambda entry, part: entry.update(checkpoint="0" * 64),
    "another checkpoint in the certificate": lambda entry, part: part.update(checkpoint_sha256="0" * 64),
    "another claim in the log": lambda entry, part: entry.update(claim_sha256="0" * 64),
    "no claim in the log": lambda entry, part: entry.pop("claim_sha256"),
    "a stronger claim": lambda entry, part: part["claim"].update(guarantee="exact"),
    "a smaller epsilon": lambda entry, part: part["claim"].update(epsilon=part["claim"]["epsilon"] * (1 - 1e-15)),
    "a claim without an end": lambda entry, part: part["claim"].update(epsilon=float("inf")),
    "a claim that is no number": lambda entry, part: part["claim"].update(epsilon=float("nan")),
    "an endless integer": lambda entry, part: part["claim"].update(spent=10**400),
    "a claim with half a letter": lambda entry, part: part["claim"].update(more="\ud800"),
    "a claim that is a list": lambda entry, part: part.update(claim=[]),
    "a claim less": lambda entry, part: part.pop("claim"),
    "a field more": lambda entry, part: part["claim"].update(more=None),
    "another method in the log": lambda entry, part: entry.update(method="newton"),
    "another method in the certificate": lambda entry, part: part.update(method="retrain"),
    "another method, and no samples": lambda entry, part: part.update(method="retrain", samples=0),
    "no method in the log": lambda entry, part: entry.pop("method"),
    "another generation": lambda entry, part: part.update(generation=7),
    "another number": lambda entry, part: part.update(version=4),
    "a number less in the log": lambda entry, part: entry.pop("number"),
    "another kind in the log": lambda entry, part: entry.update(kind="version.purged"),
}
"""what somebody with the signing key may let the certificate claim, while the log says something else"""


NOT_STRICT = {"a claim without an end", "a claim that is no number", "an endless integer", "a claim with half a letter"}
"""of these, what is refused without the log too"""


def issued_changes(world: World) -> dict[str, Papers]:
    """The log under the right key, with another entry of the certificate or none."""
    bodies = list(world.bodies)
    entry = json.loads(bodies[-1])
    assert entry["kind"] == "certificate.issued"
    other = {
        "none": None,
        "another digest": entry | {"payload_sha256": "0" * 64},
        "another request": entry | {"request": "0" * 32},
        "another kind": entry | {"kind": "certificate.refused"},
        "digest elsewhere": entry | {"payload_sha256": None, "what": entry["payload_sha256"]},
    }
    return {
        f"certificate's entry: {name}": Papers(
            world.after,
            str(world.new.verifier),
            exported([*bodies[:-1], *([canonical(changed_)] if changed_ else [])], world.new),
        )
        for name, changed_ in other.items()
    }


def rotations(world: World) -> dict[str, Papers]:
    """Certificates of keys that the log's key never acknowledged, and of one that was retired before."""
    place = next(n for n, body in enumerate(world.bodies) if json.loads(body)["kind"] == ROTATED)
    bodies, key = list(world.bodies), str(world.new.verifier)
    facts = json.loads(bodies[place])
    found = {}

    def under(name: str, certificate: Json, texts: list[str], configured: str = key) -> None:
        found[name] = Papers(certificate, configured, exported(texts, world.new))

    for name, change in {
        "no acknowledgement": {"acknowledgement": None},
        "acknowledged by the retired key": {"acknowledgement": signatures(world.old, world.old)["acknowledgement"]},
        "acknowledgement of another key": {"acknowledgement": signatures(THIEF, world.new)["acknowledgement"]},
        "acknowledgement is a number": {"acknowledgement": 7},
        "endorsement in place of it": {"acknowledgement": facts["endorsement"]},
    }.items():
        under(f"rotation: {name}", world.before, [*bodies[:place], canonical(facts | change), *bodies[place + 1 :]])
    less = {name: value for name, value in facts.items() if name != "acknowledgement"}
    under(
        "rotation: of before acknowledgements", world.before, [*bodies[:place], canonical(less), *bodies[place + 1 :]]
    )
    for name in ("retired", "key", "endorsement"):
        less = {each: value for each, value in facts.items() if each != name}
        under(f"rotation: no {name}", world.after, [*bodies, canonical(less)])
        under(f"rotation: {name} is odd", world.after, [*bodies, canonical(facts | {"key": "x", "retired": "x"})])
    # a thief's certificate, of a log of the thief's own, and of the real one
    own = [json.dumps(json.loads(body)) for body in bodies]
    for kind, log in {"own": own, "real": bodies}.items():
        forged = signed(THIEF, proved_in(statement_of(world.after), log, THIEF))
        rotations: Json = {
            "retired by the log's key": signatures(THIEF, world.new) | {"acknowledgement": None},
            "signed by the thief alone": signatures(THIEF, THIEF) | {"key": key},
            "successor of the log's key": signatures(world.new, THIEF) | {"endorsement": facts["endorsement"]},
            "successor of the first key": signatures(world.old, THIEF),
        }
        for name, more in rotations.items():
            texts = [*bodies, canonical({"kind": ROTATED, **more}), issued_of(world, forged)]
            behind = (*lines_of(texts), world.export[-1])
            found[f"thief ({kind} log), lines behind the head: {name}"] = Papers(forged, key, behind)
            under(f"thief ({kind} log), lines under the head: {name}", forged, texts)
        found[f"thief ({kind} log), no line"] = Papers(forged, key, world.export)
    # the first key, stolen after it was retired
    for size in (place + 2, len(bodies) - 1):
        late = signed(world.old, proved_in(statement_of(world.before), bodies, world.old, size))
        for trusted in (world.old, world.new):
            name = "the old" if trusted is world.old else "the new"
            under(
                f"retired key signs {size} entries, {name} is trusted",
                late,
                [*bodies, issued_of(world, late)],
                str(trusted.verifier),
            )
    return found


def issued_of(world: World, certificate: Json) -> str:
    """The entry that this certificate was issued."""
    said = {"request": statement_of(certificate)["predicate"]["request"], "payload_sha256": payload_digest(certificate)}
    return canonical(json.loads(world.bodies[-1]) | said)


def keys(world: World) -> dict[str, Papers]:
    key = str(world.new.verifier)
    name, key_id, raw = key.split("+", 2)
    odd = {
        "another key": str(THIEF.verifier),
        "empty": "",
        "a word": "key",
        "another hash": f"{name}+00000000+{raw}",
        "hash in capitals": f"{name}+{key_id.upper() if key_id.upper() != key_id else 'X'}+{raw}",
        "another name": f"x{key}",
        "no name": f"+{key_id}+{raw}",
        "no base64": f"{name}+{key_id}+!",
        "base64 with a line feed": f"{name}+{key_id}+{raw[:10]}\n{raw[10:]}",
        "base64 with spare bits": f"{name}+{key_id}+{raw[:-1]}",
        "an information separator behind": f"{key}\x1c",
        "a next line in front": f"\x85{key}",
        "a space without break behind": f"{key}\xa0",
        "a form feed behind": f"{key}\f",
        "a byte-order mark": f"\ufeff{key}",
        "another algorithm": f"{name}+{key_id}+{b64encode(bytes([2]) + b64decode(raw)[1:]).decode()}",
    }
    return {
        f"key: {what}{', log' if log else ''}": replace(world.papers(world.after, log=log), key=text)
        for what, text in odd.items()
        for log in (False, True)
    }


def altered(world: World) -> dict[str, Papers]:
    """Every altered certificate, log and export."""
    found: dict[str, Papers] = {}
    for name, change in ENVELOPE.items():
        made = copy.deepcopy(world.after)
        change(made)
        found |= {f"{name}{', log' if log else ''}": world.papers(made, log=log) for log in (False, True)}
    for name, alter in STATEMENT.items():
        statement = statement_of(world.after)
        alter(statement)
        made = signed(world.new, statement)
        found |= {f"{name}{', log' if log else ''}": world.papers(made, log=log) for log in (False, True)}
    for name, spoil in LOG.items():
        lines = copy.deepcopy(list(world.export))
        spoil(lines)
        found[f"log: {name}"] = replace(world.papers(world.after), log=tuple(lines))
    text = "".join(json.dumps(line) + "\n" for line in world.export)
    for name, spoiled in {
        "an empty line": text.replace("\n", "\n\n", 1),
        "no JSON": text + "x\n",
        "an array": json.dumps(list(world.export)),
        "very deep": text + "[" * 100_000 + "\n",
        "a line cut": text[:-9],
    }.items():
        found[f"log: {name}"] = replace(world.papers(world.after), export=spoiled.encode())
    for encoding in ("utf-16", "utf-8-sig"):
        found[f"log: {encoding}"] = replace(world.papers(world.after), export=text.encode(encoding))
    for name, extra in NO_JSON.items():
        found[f"log: {name}"] = replace(
            world.papers(world.after), export=text.encode().replace(b"{", b'{"more":%s,' % extra, 1)
        )
    found |= {f"claimed: {name}": rewritten(world, change) for name, change in ENTRY.items()}
    odd: dict[str, Any] = {"a list": [], "null": None, "a number": 5, "a text": "x"}
    found |= {f"certificate is {name}": world.papers(each, log=False) for name, each in odd.items()}
    by_name = world.after | {"signatures": {"0": world.after["signatures"][0]}}
    found["signatures are an object"] = world.papers(by_name, log=False)
    file, payload = json.dumps(world.after), json.dumps(statement_of(world.after))
    for encoding in ("utf-16", "utf-8-sig"):
        found[f"certificate in {encoding}"] = world.papers(file.encode(encoding), log=False)
        found[f"payload in {encoding}"] = world.papers(sign(world.new, payload.encode(encoding)), log=False)
    for name, extra in NO_JSON.items():
        beside, inside = (each.encode().replace(b"{", b'{"more":%s,' % extra, 1) for each in (file, payload))
        found[f"beside the signature: {name}"] = world.papers(beside, log=False)
        found[f"signed: {name}"] = world.papers(sign(world.new, inside), log=False)
    for name, alter in TYPES.items():
        statement = statement_of(world.after)
        alter(statement["predicate"])
        _name_files(statement)
        found[name] = world.papers(signed(world.new, statement), log=False)
    older = statement_of(world.before)
    found["certificate of the old key without a log"] = world.papers(world.before, log=False)
    found["statement of before under the new key"] = world.papers(signed(world.new, older))
    found["head of before under the new key"] = world.papers(signed(world.new, older), log=False)
    vector = json.loads((VECTORS / "erasure-v1.json").read_text())
    found["format v1 with another log"] = Papers(vector["certificate"], vector["key"], world.export)
    found["v1 with the log of another"] = world.papers(vector["certificate"])
    relabelled = statement_of(world.after) | {"predicateType": FORMATS[0]}
    relabelled["predicate"]["models"][0]["claim"]["epsilon"] /= 2
    found["called v1 with another claim"] = world.papers(signed(world.new, relabelled))
    return found | claiming(world, UNCOVERED) | issued_changes(world) | rotations(world) | keys(world)


@ON_SQLITE
def test_all_refuse_what_is_altered(world: World, tmp_path: Path) -> None:
    said = all_verdicts(altered(world), tmp_path)
    assert {name: each for name, each in said.items() if any(each.values())} == {}
    assert len(said) >= 200


@ON_SQLITE
def test_a_certificate_that_was_read_before_is_judged_alike(world: World) -> None:
    key, deep = str(world.new.verifier), list[Any]()
    for _ in range(20_000):
        deep = [deep]
    assert verify_certificate(world.after, key).log_entries is None
    for more in (float("nan"), 10**309, "\ud800", deep):
        with pytest.raises(expunge_client.NotAuthentic):
            verify_certificate(world.after | {"more": more}, key)


@ON_SQLITE
def test_the_page_trusts_the_fingerprint_alone(world: World) -> None:
    """With the printed fingerprint the page judges as with the key. A certificate under another key fails."""
    right, wrong = accepted(world), altered(world) | keys(world)
    by_fingerprint = by_page(right, fingerprint_of)
    assert by_fingerprint and all(by_fingerprint.values()), by_fingerprint
    certain = {name: each for name, each in wrong.items() if not name.startswith("key:")}
    refused = by_page(certain, fingerprint_of)
    assert len(refused) > 60 and not any(refused.values()), refused
    forged = statement_of(world.after)
    forged["predicate"]["audit"]["key"] = str(THIEF.verifier)
    thief = signed(THIEF, proved_in(forged, list(world.bodies), THIEF))
    good, spaced, thieves, foreign, short = judged_by_page(
        [
            _asked(json.dumps(world.after).encode(), world.new.verifier.fingerprint),
            _asked(json.dumps(world.after).encode(), _as_printed(world.new.verifier.fingerprint)),
            _asked(json.dumps(thief).encode(), THIEF.verifier.fingerprint),
            _asked(json.dumps(thief).encode(), world.new.verifier.fingerprint),
            _asked(json.dumps(world.after).encode(), world.new.verifier.fingerprint[:-1]),
        ]
    )
    assert (good, spaced, thieves) == (
        None,
        None,
        None,
    )  # sound under the thief's key: only the letter tells them apart
    assert foreign is not None and "another fingerprint" in foreign
    assert short is not None and "You entered 31 characters" in short


def fingerprint_of(papers: Papers) -> str:
    return Verifier.parse(papers.key).fingerprint


def _as_printed(fingerprint: str) -> str:
    return " ".join(textwrap.wrap(fingerprint.upper(), 4))


@ON_SQLITE
def test_what_only_the_log_contradicts_is_accepted_without_it(world: World, tmp_path: Path) -> None:
    """So the answer says that nothing was compared. With the log each is refused, above."""
    for name, change in ENTRY.items():
        if name in NOT_STRICT:
            continue
        papers = replace(rewritten(world, change), log=None)
        assert all(verdicts(papers, tmp_path).values()), name


def test_the_page_opens_what_the_service_commits_to() -> None:
    """Names of any script, several ids, samples and cases; the slow twin is the service's own commitment."""
    dice, key = random.Random(3), bytes(range(32))
    letters = ["a", "Z", "9", "é", "e\u0301", "\ufb33", "\U0001f600", '"', "\\", "\x7f", "\u2028", " b"]
    asked: list[Json] = []
    for _ in range(60):
        ids = ["x" + "".join(dice.choices(letters, k=dice.randrange(4))) + "y" for _ in range(dice.randrange(1, 4))]
        case = dice.choice([None, "C-113", "é\n"])
        names = tuple(ids)
        order = dice.choice([Order(subject_ids=names, case_id=case), Order(sample_ids=names, case_id=case)])
        found = {"commitment": commitment(key, order)}
        typed = [key.hex().upper(), dice.sample(ids, len(ids)), case or ""]
        asked += [
            {"accepted": found, "opening": typed},
            {"accepted": found, "opening": [typed[0], [*ids, "z"], typed[2]]},
            {"accepted": found, "opening": [typed[0], ids, f"{case}2"]},
            {"accepted": found, "opening": ["f" * 64, ids, typed[2]]},
        ]
    said = judged_by_page(asked)
    assert [each is None for each in said] == [True, False, False, False] * 60


# --- at random -------------------------------------------------------------------------------------------------------


def mutated(world: World, dice: random.Random) -> Papers:
    """One value of the statement, the envelope or the export replaced or removed, signed again where that helps."""
    certificate, signer = dice.choice([(world.before, world.old), (world.after, world.new)])
    what = dice.randrange(4)
    log = dice.random() < 0.6
    if what == 0:
        statement = dice.choice([changed, any_changed])(statement_of(certificate), dice)
        return world.papers(signed(signer, statement), log, dice.choice([signer, world.new]))
    if what == 1:
        return world.papers(any_changed(certificate, dice), log, signer)
    lines = list(copy.deepcopy(world.export))
    if what == 2:
        place = dice.randrange(len(lines))
        lines[place] = any_changed(lines[place], dice)
        return replace(world.papers(certificate), log=tuple(lines))
    bodies = list(world.bodies)
    place = dice.randrange(len(bodies))
    bodies[place] = canonical(any_changed(json.loads(bodies[place]), dice))
    return Papers(certificate, str(world.new.verifier), exported(bodies, world.new))


def any_changed(value: Json, dice: random.Random) -> Json:
    """A copy with one value, at any depth, replaced or removed."""
    made = copy.deepcopy(value)
    node: Any = made
    place: Any = dice.choice(list(node))
    while isinstance(node[place], dict | list) and node[place] and dice.random() < 0.8:
        node = node[place]
        place = dice.choice(list(node)) if isinstance(node, dict) else dice.randrange(len(node))
    odd = [
        None,
        "",
        "x",
        "\ud800",
        5,
        1.0,
        True,
        1 << 53,
        10**309,
        -1,
        [],
        {},
        "00" * 32,
        b64encode(b"\0" * 32).decode(),
        node[place],
    ]
    if isinstance(node[place], str) and node[place]:
        cut = dice.randrange(len(node[place]))
        odd += [node[place][:cut], node[place][:cut] + dice.choice("\n =A0") + node[place][cut:], node[place] + "\n"]
    if dice.random() < 0.2:
        del node[place]
    else:
        node[place] = dice.choice(odd)
    return made


def _judged_alike(world: World, folder: Path, count: int, seed: int) -> None:
    dice = random.Random(seed)
    papers = {str(place): mutated(world, dice) for place in range(count)}
    judged = all_verdicts(papers, folder)
    for name, said in judged.items():
        assert len(set(said.values())) == 1, (said, papers[name])
    good = sum(said["command"] for said in judged.values())
    assert count / 50 < good < count * 0.7


@ON_SQLITE
def test_all_say_the_same_of_papers_changed_at_random(world: World, tmp_path: Path) -> None:
    _judged_alike(world, tmp_path, 300, 7)


ODD = [
    b"-",
    b"01",
    b"1.0",
    b"1E5",
    b"1e999",
    b"NaN",
    b"[",
    b"}",
    b'"',
    b"\\",
    b"\\ud800",
    b"\\u0000",
    b",",
    b":",
    b"null",
]
ODD += [b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xc2\x85", b"\x00", b"\x0b", b"\x1c", b"\r", b" ", b"'", b"/**/"]
ODD += [b'"__proto__":{},', b'"constructor":1,', b'"float":1,', b'"index":1,', b'"version":2,']


@ON_SQLITE
def test_all_say_the_same_of_bytes_changed_at_random(world: World, tmp_path: Path) -> None:
    """Odd bytes in the file, in what is signed, and in the key."""
    dice, key = random.Random(11), str(world.new.verifier)
    file, payload = json.dumps(world.after).encode(), canonical(statement_of(world.after)).encode()

    def broken(raw: bytes) -> bytes:
        place = dice.choice([at for at, each in enumerate(raw) if each in b'{}[],:"0123456789']) + dice.randrange(2)
        return raw[:place] + dice.choice(ODD) + raw[place + dice.choice([0, 0, 1]) :]

    papers = {}
    for place in range(300):
        papers[f"file {place}"] = Papers(broken(file), key, None)
        papers[f"payload {place}"] = Papers(sign(world.new, broken(payload)), key, None)
        papers[f"key {place}"] = Papers(world.after, broken(key.encode()).decode(errors="replace"), None)
    said = all_verdicts(papers, tmp_path)
    assert {name: (each, papers[name]) for name, each in said.items() if len(set(each.values())) > 1} == {}
    assert 20 < sum(all(each.values()) for each in said.values()) < 450


def _any_bytes(good: bytes, dice: random.Random) -> bytes:
    """Return bytes that need not be JSON at all, or JSON of another form than a certificate."""
    small = dice.choice(["", "null", "1", '"x"', "[]", "{}", "[{}]", '{"payload": 5}', '{"payload": "e30="}', "NaN"])
    deep = dice.choice(["[", '{"payload":', '{"signatures":[']) * dice.choice([50, 101, 5000, 100_000])
    long = '{"payload": ' + dice.choice(["9", "-1e", "1."]) * 5000 + "}"
    place = dice.randrange(len(good))
    choices = [small.encode(), deep.encode(), long.encode(), dice.randbytes(dice.randrange(400)), good[:place]]
    return dice.choice(
        [*choices, good[place:], good + good, good[:place] + dice.randbytes(9) + good[place:], b"\xff" + good]
    )


@ON_SQLITE
def test_any_bytes_end_in_a_verdict(world: World, tmp_path: Path) -> None:
    """In the place of the certificate, of what it signs, of the key and of the log."""
    dice, good = random.Random(23), world.papers(world.after)
    whole = "".join(json.dumps(line) + "\n" for line in world.export).encode()
    signed_text = canonical(statement_of(world.after)).encode()
    papers = {}
    for place in range(250):
        papers[f"file {place}"] = Papers(_any_bytes(good.file, dice), good.key, None)
        papers[f"signed {place}"] = Papers(sign(world.new, _any_bytes(signed_text, dice)), good.key, None)
        papers[f"typed {place}"] = Papers(any_changed(world.after, dice), good.key, None)
        papers[f"log {place}"] = replace(good, log=good.log, export=_any_bytes(whole, dice))
        odd = _any_bytes(good.key.encode(), dice).decode("utf-8", "replace").replace("\0", "")
        papers[f"key {place}"] = Papers(world.after, odd, None)
    judged = all_verdicts(papers, tmp_path)
    assert {name: said for name, said in judged.items() if len(set(said.values())) > 1} == {}
    assert sum(all(said.values()) for said in judged.values()) < 200


def test_the_example_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, expected in [
        (["verify.py"], "CERTIFICATE KEY"),
        (["verify.py", str(tmp_path / "none"), str(tmp_path / "none")], "No such file"),
        (["verify.py", str(tmp_path), str(tmp_path)], "directory"),
    ]:
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit, match=expected):
            exec(EXAMPLE, {"__name__": "__main__"})


@ON_SQLITE
def test_an_unknown_format_is_named(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = "urn:expunge:predicate:erasure:v3"
    statement = statement_of(world.after) | {"predicateType": later}
    certificate, key, _ = world.papers(signed(world.new, statement), log=False).write(tmp_path)
    with pytest.raises(CommandError, match=later):
        verify(certificate, key)
    with pytest.raises(NotAuthentic, match=later):
        envelope.verify(json.loads(certificate.read_text()), Verifier.load(key))
    monkeypatch.setattr(sys, "argv", ["verify.py", str(certificate), str(key)])
    with pytest.raises(SystemExit, match=later):
        exec(EXAMPLE, {"__name__": "__main__"})
