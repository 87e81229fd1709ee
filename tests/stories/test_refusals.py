"""Bad input is refused in clear words, echoes nothing, and leaves nothing half done."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import func, select

from expunge_service.access.api_keys import Scope
from expunge_service.infra.tables import Record
from tests.harness.stack import Stack

SECRET = "person-who-must-not-be-echoed"
REQUESTS = "/v1/deletion-requests"


def test_calls_without_a_key_or_scope_are_refused(stack: Stack) -> None:
    before = rows(stack)
    body = {"subject_id": SECRET}
    refused(stack, body, 401, "key", Authorization="")
    refused(stack, body, 401, "key", Authorization=f"Bearer exp_{'0' * 12}_{'0' * 64}")
    assert rows(stack) == before
    reader = stack.key(Scope.DELETIONS_READ)
    refused(stack, body, 403, "deletions:write", Authorization=f"Bearer {reader}")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        pytest.param({"subject_id": SECRET, "models": ["no-such-model"]}, 422, "no such model", id="unknown-model"),
        pytest.param({"subject_id": SECRET, SECRET: 1}, 422, "", id="unknown-field"),
        pytest.param({"subject_id": SECRET, "sample_ids": [SECRET]}, 422, "give one of", id="subject-and-samples"),
        pytest.param({"subject_id": SECRET, "regulation": SECRET}, 422, "gdpr", id="unknown-regulation"),
        pytest.param({"sample_ids": [f"{SECRET}{n}" for n in range(10_001)]}, 422, "10000", id="too-many-samples"),
        pytest.param(f'{{"subject_id": "{SECRET}"', 422, "JSON", id="malformed"),
        pytest.param("[" * 2_000_000, 413, "bytes", id="oversized"),
    ],
)
def test_a_request_that_makes_no_sense_changes_nothing(stack: Stack, body: Any, status: int, says: str) -> None:
    before = rows(stack)
    refused(stack, body, status, says)
    assert rows(stack) == before


def test_a_request_without_an_idempotency_key_is_refused(stack: Stack) -> None:
    refused(stack, {"subject_id": SECRET}, 400, "Idempotency-Key", **{"Idempotency-Key": None})


@pytest.mark.parametrize(
    ("recipe", "method", "policy", "says"),
    [
        pytest.param("raises", "recollection", {}, "RuntimeError", id="raises"),
        pytest.param("duplicate_ids", "recollection", {}, "an id that an earlier row has", id="duplicate-ids"),
        pytest.param("not_a_number", "recollection", {}, "NaN", id="nan"),
        pytest.param("dropout", "recollection", {}, "ropout", id="dropout"),
        pytest.param("batch_norm", "recollection", {}, "BatchNorm", id="batch-norm"),
        pytest.param("undecayed_bias", "recollection", {"guarantee": "proved"}, "bias", id="undecayed-bias"),
    ],
)
def test_a_recipe_that_cannot_be_served_is_refused_with_its_reason(
    stack: Stack, recipe: str, method: str, policy: dict[str, Any], says: str
) -> None:
    files = published(stack)
    name = stack.register(recipe, method, **policy)
    state = stack.prepared(name)
    assert state["status"] == "refused"
    assert says in state["reason"]
    assert recipe == "raises" or "tiny-person" not in state["reason"], "only the recipe's own message may say so"
    assert "tiny-person" not in "".join(bodies(stack))
    assert list(stack.client.pages(f"/v1/models/{name}/versions")) == []
    assert published(stack) <= files, "nothing was left; the scheduler may have purged an older version meanwhile"
    assert left_behind(stack, name) == {"memberships": 0, "recollections": 0, "versions": 0, "forgotten": 0}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"method": "wish"}, "retrain"),
        ({"epsilon": -1}, "epsilon"),
        ({"max_distance": 1e-2, "noise_std": 1e-3}, "noise_std"),
        ({"options": {"damping": "x" * 300}}, "options"),
        ({"recipe": "../../etc/passwd"}, "recipe"),
        ({"recipe": "no-such-recipe"}, "no_recipe"),
        ({"name": "Digits!"}, "name"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_registration_that_makes_no_sense_changes_nothing(stack: Stack, change: dict[str, Any], says: str) -> None:
    before = rows(stack)
    refused(stack, {"name": "sound", "recipe": "tiny", "method": "recollection"} | change, 422, says, path="/v1/models")
    assert rows(stack) == before


def refused(stack: Stack, body: Any, status: int, says: str, path: str = REQUESTS, **headers: str | None) -> None:
    """POST and expect a problem that says so and echoes nothing."""
    ours = {"Authorization": f"Bearer {stack.account.api_key}", "Idempotency-Key": "refused"}
    given = ours | {"Content-Type": "application/json"} | headers
    answer = stack.http.post(
        path,
        content=body if isinstance(body, str) else json.dumps(body),
        headers={name: value for name, value in given.items() if value is not None},
    )
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json().keys() >= {"type", "title", "status", "detail", "instance", "code", "errors"}
    assert says in answer.text
    assert SECRET not in answer.text


def rows(stack: Stack) -> dict[str, int]:
    """How many rows each table has that calls write to. The scheduler writes others whenever it likes."""
    written = ("models", "generations", "deletion_requests", "tasks", "suppressions", "idempotency_keys")
    tables = Record.metadata.tables
    entries = select(func.count()).select_from(tables["audit_entries"])
    accepted = entries.where(tables["audit_entries"].c.kind.in_(["request.accepted", "model.registered"]))
    database = stack.database()
    with database.read() as session:
        counts = {name: session.scalar(select(func.count()).select_from(tables[name])) for name in written}
        counts["audit_entries"] = session.scalar(accepted)
    database.close()
    return {name: count or 0 for name, count in counts.items()}


def bodies(stack: Stack) -> list[str]:
    """Every audit entry."""
    database = stack.database()
    with database.read() as session:
        found = list(session.scalars(select(Record.metadata.tables["audit_entries"].c.body)))
    database.close()
    return found


def left_behind(stack: Stack, name: str) -> dict[str, int]:
    tables = Record.metadata.tables
    model = tables["models"]
    database = stack.database()
    with database.read() as session:
        row = session.execute(select(model.c.id, model.c.generation_id).where(model.c.name == name)).one()
        counts = {
            table: session.scalar(
                select(func.count())
                .select_from(tables[table])
                .where(tables[table].c.generation_id == row.generation_id)
            )
            for table in ("memberships", "recollections", "versions", "forgotten")
        }
    database.close()
    return {table: count or 0 for table, count in counts.items()}


def published(stack: Stack) -> set[str]:
    """The files of versions in both stores; the log adds heads meanwhile."""
    folders = (stack.settings.store, stack.settings.private_store)
    files = {path for folder in folders if folder.exists() for path in folder.rglob("*") if path.is_file()}
    return {str(path) for path in files if path.parent.name != "heads"}
