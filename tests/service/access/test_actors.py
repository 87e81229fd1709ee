"""Every entry of the audit log names who acted, by an opaque id; names lie in one table, and can be erased."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge_service.access.api_keys import create_key
from expunge_service.api.dependencies import Service
from expunge_service.audit.log import canonical, integrate, record
from expunge_service.audit.signed_note import Signer
from expunge_service.audit.verification import verify
from expunge_service.infra.actors import SCHEDULER, WORKER
from expunge_service.infra.db import Database
from expunge_service.infra.tables import ActorName, ApiKey, AuditEntry
from tests.service.access.test_tenants import BODIES, call, furnish, routes
from tests.service.conftest import Login

ROOT = Path(__file__).parents[3]
Keys = Callable[..., dict[str, str]]
WRITTEN_OUT = {
    *(
        "consent.given",
        "attempt.failed",
        "attempt.given_back",
        "budget.exhausted",
        "certificate.issued",
        "certificate.refused",
        "consumer.added",
        "consumer.removed",
        "generation.switched",
    ),
    *("hold.lifted", "hold.placed", "key.created", "key.revoked", "key.rotated", "keys.destroyed"),
    *("model.registered", "model.renamed", "model.retired", "people.searched", "preparation.chosen"),
    *(
        "preparation.interrupted",
        "preparation.refused",
        "preparation.withheld",
        "preparation.accepted",
        "request.accepted",
        "request.extended",
        "request.retried",
    ),
    "request.approved",
    *(
        "request.spelling_confirmed",
        "request.spelling_denied",
        "request.verified",
        "request.{}",
        "restore.applied",
        "restore.confirmed",
        "retrain.dry_run_ended",
    ),
    *("retrain.planned", "retrain.refused", "suppression.lifted", "update.claimed", "update.blocked"),
    *("admission.left_out", "admission.unchecked", "model.cancelled"),
    *("model.policy_changed", "version.purged", "webhook.added", "webhook.disabled", "webhook.replayed", "{}.claimed"),
}
"""every kind that a call in the source names; {} is filled in there"""
IN_VARIABLES = {
    "service/expunge_service/access/api_keys.py": "actor.renamed, actor.erased",
    "service/expunge_service/audit/key_rotation.py": "log.key_rotated",
    "service/expunge_service/audit/log.py": "record calls entry",
    "workers/expunge_workers/scheduler/restore.py": "version.restored",
    "workers/expunge_workers/training/prepare.py": "preparation.switched",
    "service/expunge_service/queue/publication.py": "version.published",
    "service/expunge_service/queue/results.py": "update.blocked, update.postponed, update.empty",
    "service/expunge_service/queue/drains.py": "worker.drained, worker.resumed",
}


def bodies(service: Service) -> list[dict[str, Any]]:
    with service.database.read() as session:
        return [json.loads(body) for body in session.scalars(select(AuditEntry.body).order_by(AuditEntry.id))]


def recorded() -> Iterator[tuple[Path, ast.Call]]:
    """Every call of ``record`` or ``entry`` in the source."""
    for path in [*ROOT.glob("service/**/*.py"), *ROOT.glob("workers/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in ("record", "entry") and len(node.args) >= 3:
                    yield path, node


def kind_of(node: ast.expr) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # type: ignore[misc]
    return str(node.value) if isinstance(node, ast.Constant) else None


def test_every_kind_of_entry_is_known_and_made_in_the_one_place_that_names_its_actor() -> None:
    calls = [(str(path.relative_to(ROOT)), kind_of(node.args[2])) for path, node in recorded()]
    assert {kind for _, kind in calls if kind is not None} == WRITTEN_OUT
    assert {path for path, kind in calls if kind is None} == IN_VARIABLES.keys()
    making = {
        str(path.relative_to(ROOT))
        for path in [*ROOT.glob("service/**/*.py"), *ROOT.glob("workers/**/*.py")]
        if any(text in path.read_text() for text in ("AuditEntry(", "insert(AuditEntry.", "_INSERTS[AuditEntry]"))
    }
    with_actor = {"service/expunge_service/audit/log.py", "service/expunge_service/requests/intake.py"}
    assert making == with_actor | {
        "service/expunge_service/audit/import_export.py",
        "service/expunge_service/infra/tables/installation.py",
    }


def test_a_transaction_without_an_actor_records_nothing(database: Database) -> None:
    with Session(database.engine) as session, pytest.raises(KeyError, match="actor"):
        record(session, "default", "test.step")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_call_is_recorded_under_its_key_and_its_keys_holder(
    api: TestClient, service: Service, key_of: Keys
) -> None:
    everything = key_of(tenant_id="one")
    mine = furnish(api, service, everything, "one")
    for route in sorted(routes(api), key=lambda route: route.method == "DELETE"):
        call(api, route, everything, mine)
    with service.database.read() as session:
        prefix = everything["Authorization"].split("_")[1]
        key = session.scalars(select(ApiKey).where(ApiKey.prefix == prefix)).one()
    first, *entries = bodies(service)
    assert (first["kind"], first["actor"], first["actor_key"]) == ("key.created", "api", None), "made by the test"
    assert first["issued_to"] == key.actor_id
    assert {(each["actor"], each["actor_key"]) for each in entries} == {(key.actor_id, key.id)}
    assert len({each["kind"] for each in entries}) > 12
    assert BODIES["PUT", "/v1/actors/{actor_id}"]["name"] not in canonical({"log": bodies(service)})


def test_a_process_acts_by_its_own_name(database_url: str) -> None:
    for actor in (WORKER, SCHEDULER):
        database = Database(database_url, actor)
        with database.write() as session:
            record(session, "default", "test.step")
        with database.read() as session:
            body = json.loads(session.scalars(select(AuditEntry.body).order_by(AuditEntry.id.desc())).first() or "")
        database.close()
        assert (body["actor"], body["actor_key"]) == (actor, None)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_page_acts_for_the_key_that_logged_in(login: Login, service: Service, key_of: Keys) -> None:
    api = login()
    sent = {"json": {"subject_id": "ada", "verified": False}, "headers": key_of() | {"Idempotency-Key": "k"}}
    request = api.post("/v1/deletion-requests", **sent).json()["id"]  # type: ignore[arg-type]
    with service.database.read() as session:
        key = session.scalars(select(ApiKey).where(ApiKey.label == "t")).one()
    shown = api.get(f"/console/requests/{request}").text
    token = shown.partition('name="token" value="')[2].partition('"')[0]
    form = {"token": token, "sure": "yes", "act": "verify", "request_id": request}
    answer = api.post("/console/act", data=form, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    verified = next(each for each in bodies(service) if each["kind"] == "request.verified")
    assert (verified["actor"], verified["actor_key"]) == (key.actor_id, key.id)


def test_names_are_shown_from_their_table_and_are_gone_when_erased(
    api: TestClient, service: Service, key_of: Keys
) -> None:
    admin = key_of()
    made = api.post("/v1/keys", json={"label": "Grace Hopper", "scopes": ["audit:read"]}, headers=admin).json()
    second = api.post("/v1/keys", json={"scopes": ["keys:admin"], "actor": made["actor"]}, headers=admin).json()
    assert second["actor"] == made["actor"], "one person with two keys is one actor"
    bearer = {"Authorization": f"Bearer {second['key']}"}
    assert api.post(f"/v1/keys/{made['id']}/rotate", headers=admin).json()["actor"] == made["actor"]
    assert api.put(f"/v1/actors/{made['actor']}", json={"name": "\x9b31m"}, headers=bearer).status_code == 422
    assert api.put(f"/v1/actors/{made['actor']}", json={"name": "G. Hopper"}, headers=bearer).status_code == 200
    with service.database.write() as session:
        integrate(session, Signer.of(service.settings))

    def listed() -> list[dict[str, Any]]:
        return [each for each in api.get("/v1/audit-log", headers=admin).json()["data"] if each["actor_key"]]

    by_her = [each for each in listed() if each["actor"] == made["actor"]]
    assert [(each["kind"], each["actor_name"], each["actor_key"]) for each in by_her] == [
        ("actor.renamed", "G. Hopper", second["id"])
    ]
    assert "Hopper" not in canonical({"log": bodies(service)})
    erased = api.put(f"/v1/actors/{made['actor']}", json={"name": None}, headers=admin).json()
    assert erased["name"] is None
    assert "Hopper" not in json.dumps([listed(), api.get("/v1/keys", headers=admin).json()])
    with service.database.read() as session:
        everything = [session.execute(select(table.__table__)).all() for table in (ActorName, ApiKey, AuditEntry)]  # type: ignore[arg-type]
    assert "Hopper" not in repr(everything)
    stranger = key_of(tenant_id="other")
    assert api.put(f"/v1/actors/{made['actor']}", json={"name": "x"}, headers=stranger).status_code == 404
    body = {"scopes": ["keys:admin"], "actor": made["actor"]}
    assert api.post("/v1/keys", json=body, headers=stranger).json()["code"] == "unknown_actor"


def test_an_entry_of_an_older_release_is_shown_and_verifies(api: TestClient, service: Service, key_of: Keys) -> None:
    old = {"entry": "e" * 32, "at": 1, "kind": "test.step", "tenant": "default", "request": None, "model": None}
    with service.database.write() as session:
        session.add(AuditEntry(tenant_id="default", kind="test.step", body=canonical(old), created_at=1))
        session.flush()
        integrate(session, Signer.of(service.settings))
    auditor = key_of("audit:read")
    first = api.get("/v1/audit-log", headers=auditor).json()["data"][0]
    assert (first["kind"], first["actor"], first["actor_key"], first["actor_name"]) == ("test.step", None, None, None)
    head = api.get("/v1/audit-log/checkpoint", headers=auditor).text
    lines = api.get("/v1/audit-log", headers=auditor).json()["data"]
    export = [{name: value for name, value in line.items() if not name.startswith("actor")} for line in lines]
    assert verify(export, head, Signer.of(service.settings).verifier).size == len(lines)


def test_a_key_needs_an_actor_that_there_is(service: Service) -> None:
    with pytest.raises(ValueError, match="no actor"), service.database.write() as session:
        create_key(session, service.pepper, label="", scopes=["audit:read"], actor_id="0" * 32)
