"""Workers of the last release work beside processes of this one, as docs/install.md promises."""

from __future__ import annotations

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from expunge_client import verify_certificate
from tests.harness.stack import running
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


@pytest.mark.drill
def test_a_worker_of_the_last_release_carries_out_requests_beside_this_one(old: dict[str, str], tmp_path: Path) -> None:
    """The tables, the API and the scheduler are this release's, which docs/install.md exchanges at once."""
    home, recipes = unpack(LAST, tmp_path)
    certificates = [(LAST / "certificate.json").read_text()]
    log = ""
    with running(home, recipes) as stack:
        (model,) = stack.client.pages("/v1/models")
        for person, beside in ((4, True), (5, False)):
            if beside:
                stack.restart("worker", **old)
            else:
                stack.restart("worker")
                rewrite(recipes)  # what the last release's worker trained no more
                stack.client.post(f"/v1/models/{model['name']}/port", {})
                stack.eventually(lambda: stack.head(model["name"])["number"], lambda number: number == PORTED)
            certificate, log = certified(stack, stack.forgotten(subject_id=f"tiny-person-{person}"))
            certificates.append(certificate)
    key = (LAST / "log.vkey").read_text()
    assert all(verify_certificate(each, key, log=log).claim_in_log for each in certificates)
