"""The verifiers on certificates, logs and exports that somebody altered, with the signing key where that helps.

The client, which is ``expunge certificate verify``, and ``examples/verify.py``; of papers without a log the check of
the service and the script of the page ``/verify`` as well. An altered paper that one of them accepts counts as an
undetected corruption, and so does a paper of which two say different things. The named papers are those of
``tests/service/certificates/test_verifiers.py``; the others are drawn.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from expunge_service.access.api_keys import Scope, create_key
from expunge_service.api.dependencies import Service
from expunge_service.app import create_app
from expunge_service.infra.settings import Settings
from tests.faults.result import Result
from tests.harness.databases import sqlite_databases, sqlite_template
from tests.service.certificates.test_verifiers import (
    World,
    accepted,
    all_verdicts,
    altered,
    mutated,
    rotated_installation,
)

DRAWN = 5000


def run(seed: int, scale: float) -> Result:
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="expunge-drill-") as name:
        folder = Path(name)
        world = _world(folder)
        right, wrong = accepted(world), altered(world)
        judged = all_verdicts(right, folder)
        notes = [f"{what}: {said}" for what, said in judged.items() if not all(said.values())]
        judged = all_verdicts(wrong, folder)
        notes += [f"{what}: {said}" for what, said in judged.items() if any(said.values())]
        drawn = max(20, int(DRAWN * scale))
        good = 0
        for place, said in all_verdicts({str(place): mutated(world, dice) for place in range(drawn)}, folder).items():
            good += all(said.values())
            if len(set(said.values())) > 1:
                notes.append(f"drawn paper {place}: {said}")
    return Result(
        "verifiers",
        cases=len(right) + len(wrong) + drawn,
        faults=len(wrong) + drawn,
        undetected_corruptions=len(notes),
        notes=(f"{len(wrong)} altered papers, {drawn} drawn, of which {good} were not harmed", *notes),
    )


def _world(folder: Path) -> World:
    settings = Settings(home=folder / "home", database_url=sqlite_databases(sqlite_template(folder))(folder / "home"))
    with TestClient(create_app(settings)) as client, pytest.MonkeyPatch.context() as environment:
        service: Service = client.app.state.service  # type: ignore[attr-defined]
        with service.database.write() as session:
            key = create_key(session, service.pepper, label="drill", scopes=list(Scope))
        client.headers["Authorization"] = f"Bearer {key.secret}"
        return rotated_installation(client, service, environment)
