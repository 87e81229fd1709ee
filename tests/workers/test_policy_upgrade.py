"""A database whose policies have the fields of before: its certificates say the same after the migration."""

from __future__ import annotations

import base64
import json
from importlib import import_module
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import select, text

from expunge_service.certificates.issue import issue_due
from expunge_service.infra.tables import Certificate, Model
from tests.workers.scheduler.test_restore import export, signer
from tests.workers.worlds import World

pytestmark = pytest.mark.both_engines

UPGRADE = import_module("expunge_migrations.versions.v0009_policy_fields").upgrade
CALLED_BEFORE = {
    "batch": "cadence_seconds",
    "retrain_every": "retrain_every_seconds",
    "max_accuracy_drop": "utility_tolerance",
}
MIXED = {"fallback": None, "on_exhausted": "retrain", "on_suppressed": "refuse"}
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "proved, because it was required": ("convex", "newton", {"min_guarantee": "proved", "guarantee": None}, {}),
    "proved, without being asked": ("convex", "newton", {"min_guarantee": "none", "guarantee": None}, {}),
    "none, by name": ("convex", "recollection", {"min_guarantee": "none", "guarantee": "none"}, {}),
    "exact": ("convex", "retrain", {"min_guarantee": "exact", "guarantee": None}, {}),
}


def as_before(world: World, model_id: str, old: dict[str, Any]) -> None:
    """Give the database the table and the policy that a release before the migration wrote."""
    policy = {CALLED_BEFORE.get(name, name): value for name, value in world.model(model_id).policy.items()}
    world.change(Model, model_id, policy=policy | MIXED | old)
    with world.database.write() as session:
        session.execute(text("ALTER TABLE models DROP COLUMN leave_out_forgotten"))


def certificate(world: World, request: str) -> dict[str, Any]:
    """Issue the request's certificate, again where it was issued, and return what it claims."""
    export(world)
    with world.database.write() as session:
        row = session.scalars(select(Certificate).where(Certificate.request_id == request)).one()
        row.issued_at = row.envelope = None
    assert issue_due(world.database, signer(world), world.storage.pepper) == 1
    with world.database.read() as session:
        envelope = session.scalars(select(Certificate.envelope).where(Certificate.request_id == request)).one()
    said: dict[str, Any] = json.loads(base64.b64decode(json.loads(envelope or "")["payload"]))["predicate"]
    return {name: value for name, value in said.items() if name != "audit"}


def deleted(world: World, model_id: str, person: str) -> str:
    request = world.delete(person)
    world.work(model_id)
    assert world.request(request).status == "completed"
    return request


@pytest.mark.parametrize("name", CASES)
def test_certificates_of_before_and_after_the_migration_say_the_same(world: World, name: str) -> None:
    recipe, method, old, more = CASES[name]
    model_id = world.live(recipe, method, guarantee=old["guarantee"], **more)
    request = deleted(world, model_id, "p1")
    before = certificate(world, request)
    as_before(world, model_id, old)
    with world.database.engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        UPGRADE()
    assert certificate(world, request) == before
    (then,), (later,) = before["models"], certificate(world, deleted(world, model_id, "p2"))["models"]
    fixed = ("guarantee", "reference", "max_distance", "noise_std", "delta")
    assert {each: later["claim"].get(each) for each in fixed} == {each: then["claim"].get(each) for each in fixed}
