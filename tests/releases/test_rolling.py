"""Processes of the last release and of this one work beside each other, as docs/operations/upgrade.md promises."""

from __future__ import annotations

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from expunge_client import verify_certificate
from tests.harness.stack import Stack, running
from tests.releases.folder import certified, rewrite, unpack
from tests.releases.release import PACKAGES, ROOT
from tests.releases.test_folders import FOLDERS

LAST = FOLDERS[-1]
PORTED = 4
"""the version after the folder's two and the first person's"""


@pytest.fixture
def old(tmp_path: Path) -> dict[str, str]:
    """The environment in which a process runs the last release's source."""
    command = ["git", "archive", f"v{LAST.name}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"unverified here: this clone has no tag v{LAST.name}")
    with tarfile.open(fileobj=BytesIO(found.stdout)) as packed:
        packed.extraction_filter = getattr(tarfile, "tar_filter", None)  # None before Python 3.11.4
        packed.extractall(tmp_path / "old")
    return {"PYTHONPATH": os.pathsep.join(str(tmp_path / "old" / package) for package in PACKAGES)}


def version_of(stack: Stack) -> str:
    """Return the release that the API says it is."""
    return str(stack.eventually(lambda: answered(stack), lambda said: said is not None))


def answered(stack: Stack) -> str | None:
    try:
        return str(stack.http.get("/openapi.json").json()["info"]["version"])
    except Exception:
        return None


@pytest.mark.drill
def test_processes_of_two_releases_carry_out_each_others_requests(old: dict[str, str], tmp_path: Path) -> None:
    """The tables are this release's. Each of worker, scheduler and API is the old one once while the others are new."""
    home, recipes = unpack(LAST, tmp_path)
    certificates = [(LAST / "certificate.json").read_text()]
    log = ""
    with running(home, recipes) as stack:
        new = version_of(stack)
        (model,) = stack.client.pages("/v1/models")
        for person, process in enumerate(("worker", "scheduler", "api"), start=4):
            if process == "scheduler":
                rewrite(recipes)  # what the last release's worker trained no more
                stack.client.post(f"/v1/models/{model['name']}/port", {})
                stack.eventually(lambda: stack.head(model["name"])["number"], lambda number: number == PORTED)
            stack.restart(process, **old)
            if process == "api":
                assert version_of(stack) == LAST.name != new
            certificate, log = certified(stack, stack.forgotten(subject_id=f"tiny-person-{person}"))
            certificates.append(certificate)
            stack.restart(process)
            assert version_of(stack) == new
    key = (LAST / "log.vkey").read_text()
    assert all(verify_certificate(each, key, log=log).claim_in_log for each in certificates)
