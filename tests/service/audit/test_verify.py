"""The exported log, checked offline: at least two hundred tamperings, each detected."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from expunge_client.cli.main import app
from expunge_service.audit import merkle
from expunge_service.audit.log import canonical
from expunge_service.audit.signed_note import NotAuthentic, Signer
from expunge_service.audit.verification import verify
from tests.harness import log_tree
from tests.service import rfc6962

SIGNER = Signer("log.example/one", b"s" * 32)
OTHER = Signer("log.example/one", b"x" * 32)
KEY = str(SIGNER.verifier)
"""for the independent verifier of ``rfc6962.py``, which judges everything here too"""


def exported(size: int, fork: int | None = None) -> list[dict[str, Any]]:
    """A log of ``size`` entries; from ``fork`` on, another history."""
    bodies = [canonical({"n": n, "branch": fork is not None and n >= fork}) for n in range(size)]
    return [{"index": n, "leaf_hash": merkle.leaf_hash(b.encode()).hex(), "body": b} for n, b in enumerate(bodies)]


def head(entries: list[dict[str, Any]], signer: Signer = SIGNER) -> str:
    leaves = [bytes.fromhex(entry["leaf_hash"]) for entry in entries]
    return signer.checkpoint(len(leaves), log_tree.root_of(leaves))


def test_an_honest_log_verifies_with_the_heads_of_before() -> None:
    entries = exported(23)
    earlier = [head(entries[:size]) for size in (1, 8, 22, 23)]
    assert verify(entries, head(entries), SIGNER.verifier, earlier).size == 23
    assert rfc6962.accepts(entries, head(entries), KEY, earlier)
    assert verify([], SIGNER.checkpoint(0, merkle.EMPTY_ROOT), SIGNER.verifier).size == 0


def test_an_earlier_export_is_not_called_cut() -> None:
    entries, later = exported(9), exported(12)
    with pytest.raises(NotAuthentic, match="or this is an earlier export"):
        verify(entries, head(entries), SIGNER.verifier, [head(later)])


def test_entries_behind_the_head_are_signed_by_nobody() -> None:
    entries = exported(9)
    for size in range(9):
        with pytest.raises(NotAuthentic, match="they are unsigned"):
            verify(entries, head(entries[:size]), SIGNER.verifier)
        assert not rfc6962.accepts(entries, head(entries[:size]), KEY)


def test_the_command_refuses_an_export_with_lines_behind_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPUNGE_HOME", str(tmp_path))
    (tmp_path / "log.vkey").write_text(KEY)
    entries = exported(9)
    options = ["audit", "verify", "--key", str(tmp_path / "log.vkey"), "--file", str(tmp_path / "log.jsonl")]
    for size, fault in ((9, None), (8, "1 entries are behind the 8"), (10, "was truncated")):
        head_ = head(exported(10)[:size])
        lines = [*entries, {"checkpoint": head_}]
        (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = CliRunner().invoke(app, options)
        assert (done.exit_code == 0) is (fault is None) and (fault or "") in str(done.exception), done.output


def test_entries_of_another_tenant_are_verified_by_their_hash() -> None:
    entries = exported(9)
    hidden = [entry | {"body": None} if n % 2 else entry for n, entry in enumerate(entries)]
    assert verify(hidden, head(entries), SIGNER.verifier).size == 9


def tamper(kind: str, entries: list[dict[str, Any]], dice: random.Random) -> list[dict[str, Any]]:
    """``entries`` changed by somebody who knows the format, and repairs indices and hashes where it helps them."""
    entries = copy.deepcopy(entries)
    place = dice.randrange(len(entries))
    if kind == "edit":
        entries[place]["body"] = entries[place]["body"].replace('"n":', '"m":')
    elif kind == "edit and rehash":
        entries[place]["body"] = canonical({"forged": place})
        entries[place]["leaf_hash"] = merkle.leaf_hash(entries[place]["body"].encode()).hex()
    elif kind == "remove":
        del entries[place]
    elif kind == "remove and renumber":
        del entries[place]
        entries = [entry | {"index": n} for n, entry in enumerate(entries)]
    elif kind == "reorder":
        other = (place + 1 + dice.randrange(len(entries) - 1)) % len(entries)
        entries[place], entries[other] = entries[other], entries[place]
    elif kind == "reorder and renumber":
        other = (place + 1 + dice.randrange(len(entries) - 1)) % len(entries)
        entries[place], entries[other] = entries[other], entries[place]
        entries = [entry | {"index": n} for n, entry in enumerate(entries)]
    elif kind == "truncate":
        del entries[place:]
    elif kind == "insert":
        entries.insert(place, exported(1)[0] | {"index": place})
        entries = [entry | {"index": n} for n, entry in enumerate(entries)]
    return entries


KINDS = (
    "edit",
    "edit and rehash",
    "remove",
    "remove and renumber",
    "reorder",
    "reorder and renumber",
    "truncate",
    "insert",
)


@pytest.mark.parametrize("kind", KINDS)
def test_each_of_thirty_tamperings_of_a_kind_is_detected(kind: str) -> None:
    dice = random.Random(kind)
    for _ in range(30):
        entries = exported(dice.randrange(2, 40))
        forged = tamper(kind, entries, dice)
        with pytest.raises(NotAuthentic):
            verify(forged, head(entries), SIGNER.verifier)
        assert not rfc6962.accepts(forged, head(entries), KEY)


def test_a_log_cut_back_together_with_its_head_contradicts_a_head_of_before() -> None:
    entries = exported(20)
    for size in range(1, 20):
        with pytest.raises(NotAuthentic, match="truncated"):
            verify(entries[:size], head(entries[:size]), SIGNER.verifier, [head(entries)])
        assert not rfc6962.accepts(entries[:size], head(entries[:size]), KEY, [head(entries)])


def test_a_fork_contradicts_a_head_of_before() -> None:
    seen = exported(20)
    for fork in range(20):
        forked = exported(25, fork=fork)
        with pytest.raises(NotAuthentic, match="forked"):
            verify(forked, head(forked), SIGNER.verifier, [head(seen)])
        assert not rfc6962.accepts(forked, head(forked), KEY, [head(seen)])


def test_a_head_signed_by_somebody_else_is_refused() -> None:
    entries = exported(5)
    with pytest.raises(NotAuthentic, match="not authentic"):
        verify(entries, head(entries, OTHER), SIGNER.verifier)
    assert not rfc6962.accepts(entries, head(entries, OTHER), KEY)
    with pytest.raises(NotAuthentic, match="not authentic"):
        verify(entries, head(entries), SIGNER.verifier, [head(entries[:3], OTHER)])


@pytest.mark.parametrize(
    "line",
    [
        {},
        [],
        None,
        {"index": "x", "leaf_hash": "", "body": None},
        {"index": 0, "leaf_hash": "zz", "body": ""},
        {"index": 0, "leaf_hash": "00" * 32, "body": 5},
        {"index": 0, "leaf_hash": "00" * 32, "body": "\ud800"},
        exported(1)[0] | {"index": 0.0},
        exported(1)[0] | {"index": False},
        exported(1)[0] | {"leaf_hash": exported(1)[0]["leaf_hash"].upper()},
    ],
)
def test_a_malformed_line_is_refused(line: dict[str, Any]) -> None:
    with pytest.raises(NotAuthentic):
        verify([line], head(exported(1)), SIGNER.verifier)
