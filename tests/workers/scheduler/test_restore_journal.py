"""A restore that knows a request from the journal alone."""

from __future__ import annotations

import json

import pytest

from expunge_client import verify_certificate
from expunge_service.certificates.envelope import verify as verified
from expunge_service.certificates.statement import OVERWRITTEN
from expunge_service.infra.tables import Certificate, DeletionRequest
from expunge_service.requests.intake import opening
from expunge_workers.scheduler import run
from expunge_workers.scheduler.restore import restore
from tests.workers.scheduler.test_restore import Snapshot, confirmed, export, signer, snapshot
from tests.workers.worlds import World

__all__ = ["snapshot"]


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("database_url", "finished", "with_log"),
    [
        *(("sqlite", finished, with_log) for finished in (True, False) for with_log in (True, False)),
        ("postgresql", False, True),
        *(
            pytest.param("postgresql", *rest, marks=pytest.mark.drill)
            for rest in ((True, True), (True, False), (False, False))
        ),
    ],
    indirect=["database_url"],
)
def test_who_is_known_from_the_journal_alone_gets_a_certificate(
    world: World, snapshot: Snapshot, with_log: bool, finished: bool
) -> None:
    """Also where one model's update alone was carried out before the restore, and the other's after it."""
    models = [world.live(name=name, guarantee="proved") for name in ("first", "second")]
    old = snapshot(world)
    request = world.delete("p1")
    for model_id in models[: 2 if finished else 1]:
        world.work(model_id)
    restore(old.storage, old.limits.lease_seconds, signer(old), [export(world)] if with_log else [])
    confirmed(old)
    for model_id in models:
        old.work(model_id)
    keeper = run.open_scheduler(old.settings)
    for _ in range(2):  # what the first tick writes into the log is certified in the second
        keeper.tick()
    keeper.database.close()
    (kept,) = old.rows_of(Certificate)
    statement = verified(json.loads(kept.envelope or ""), signer(old).verifier)
    assert sorted(part["model"] for part in statement["predicate"]["models"]) == ["first", "second"]
    assert {part["keys_destroyed_with_release"]["how"] for part in statement["predicate"]["models"]} == {OVERWRITTEN}
    assert (kept.request_id, kept.completed_at) == (request, old.request(request).completed_at)
    assert old.kinds().count("request.accepted") == old.kinds().count("request.completed") == 1
    with old.database.read() as session:
        row = session.get_one(DeletionRequest, request)
        opened = opening(old.storage.pepper, row.salt).hex()
    assert verify_certificate(kept.envelope or "", str(signer(old).verifier), opening=opened, subject_id="p1")
