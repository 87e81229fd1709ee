"""This release opens the folder of every earlier one, deletes one more person in it, and reads its certificate.

An earlier release's version is served, and its deletions wait until its recipe is rewritten and its model ported.

``2026-11-24`` is no release. Commit cdcbe2b7 wrote it on 24 November 2026, before eight of the migrations.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from expunge_client import verify_certificate
from tests.harness.process import PATH_OF_TESTS
from tests.harness.stack import Stack, running
from tests.releases.folder import NEXT, PACKED, certified, rewrite, unpack, write

HERE = Path(__file__).parent


def _order(name: str) -> tuple[int, ...]:
    """Return what sorts releases by their version, with the folder that is no release first."""
    return () if "-" in name else tuple(map(int, name.split(".")))


FOLDERS = sorted((each.parent for each in HERE.glob(f"*/{PACKED}")), key=lambda each: _order(each.name))


def opens(folder: Path, where: Path, *, waits: bool) -> None:
    """Open the folder with this release, delete one more person, and verify both certificates with the log.

    ``waits``: the release that wrote it had recipes that read their data by themselves, and knew nothing of spellings.
    """
    home, recipes = unpack(folder, where)
    old, key = (folder / "certificate.json").read_text(), (folder / "log.vkey").read_text()
    with running(home, recipes) as stack:
        (model,) = stack.client.pages("/v1/models")
        (asked,) = stack.client.pages("/v1/deletion-requests")
        assert (asked["status"], stack.head(model["name"])["number"]) == ("completed", 2)
        request = stack.ended(stack.delete(subject_id=NEXT))
        if waits:
            assert (request["status"], request["reason"]) == ("blocked", "recipe_form")
            misspelled = not_found(stack)
            rewrite(recipes)
            stack.client.post(f"/v1/models/{model['name']}/port", {})
            request = stack.eventually(lambda: stack.ended(request), lambda now: now["status"] == "completed")
        assert request["samples"] == 3 and stack.head(model["name"])["number"] == 3
        new, log = certified(stack, request)
        if waits:
            asks_about_spellings(stack, misspelled)
    before = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    after = [json.loads(line) for line in log.splitlines()]
    assert [each["leaf_hash"] for each in before[:-1]] == [each["leaf_hash"] for each in after[: len(before) - 1]]
    for certificate in (old, new):
        assert verify_certificate(certificate, key, log=log).claim_in_log


def not_found(stack: Stack) -> dict[str, Any]:
    """Ask for a misspelled person before the port: the id is compared exactly, and the answer says so."""
    early = stack.ended(stack.delete(subject_id="TINY-PERSON-5"))
    assert (early["status"], early["reason"]) == ("completed", "no_match")
    assert "compared exactly only" in early["title"]
    return early


def asks_about_spellings(stack: Stack, early: dict[str, Any]) -> None:
    """From the training of the port on, misspelled ids are asked about, also the one that was not found before."""
    path = f"/v1/deletion-requests/{early['id']}"
    asked = stack.eventually(lambda: stack.client.get(path), lambda now: now["status"] == "blocked")
    late = stack.delete(subject_id="TINY-PERSON-006")
    for request in (asked, late):
        assert (request["status"], request["reason"]) == ("blocked", "near_miss")
    assert stack.ended(stack.delete(subject_id="TINY-PERSON-900"))["title"].endswith("searched).")
    for request, right in ((asked, "tiny-person-5"), (late, "tiny-person-6")):
        decided = stack.client.post(f"/v1/deletion-requests/{request['id']}/same-person", {"subject_id": right})
        assert stack.ended(decided)["status"] == "completed"


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(each, id=each.name, marks=() if each in (FOLDERS[0], FOLDERS[-1]) else pytest.mark.drill)
        for each in FOLDERS
    ],
)
def test_the_folder_of_an_earlier_release_is_opened_and_goes_on(folder: Path, tmp_path: Path) -> None:
    opens(folder, tmp_path, waits=True)


@pytest.mark.drill
def test_the_folder_that_this_release_would_leave_is_opened(tmp_path: Path) -> None:
    write(tmp_path / "left")
    opens(tmp_path / "left", tmp_path, waits=False)


def test_a_folder_with_an_unknown_schema_is_refused_by_its_differences_and_nothing_is_changed(tmp_path: Path) -> None:
    home, recipes = unpack(FOLDERS[0], tmp_path)
    connection = sqlite3.connect(home / "expunge.db")
    connection.execute("UPDATE alembic_version SET version_num = '0999'")
    connection.execute("ALTER TABLE models ADD COLUMN colour TEXT")
    connection.commit()
    connection.close()
    before = contents(home)
    ours = {"EXPUNGE_HOME": str(home), "EXPUNGE_RECIPES": str(recipes)}
    for command in (["migrate"], ["up", "--port", "0"]):
        done = subprocess.run(
            [sys.executable, "-m", "expunge_client.cli.main", *command],
            env=os.environ | PATH_OF_TESTS | ours,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = " ".join(done.stderr.split())
        assert done.returncode == 1, said
        assert "schema 0999" in said and "remove_column models.colour" in said
        assert contents(home) == before


@pytest.mark.parametrize("name", ["worker", "updater", "scheduler", "restore"])
def test_no_process_of_the_workers_starts_before_the_migration(name: str, tmp_path: Path) -> None:
    home, recipes = unpack(FOLDERS[0], tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "expunge_workers.main", name],
        env=os.environ | PATH_OF_TESTS | {"EXPUNGE_HOME": str(home), "EXPUNGE_RECIPES": str(recipes)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "The schema is behind this release: run `expunge migrate`.\n",
    )


def contents(home: Path) -> dict[str, str]:
    """Return the digest of each file, but of the lock's, which is empty."""
    files = [path for path in home.rglob("*") if path.is_file() and path.suffix != ".migrating"]
    return {str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
