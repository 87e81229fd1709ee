"""Tenants do not trust each other: they share neither recipes nor digests, and may have workers of their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.access.api_keys import Scope, create_key
from expunge_service.app import create_app
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.settings import Settings, SettingsError
from expunge_service.infra.tables import Erasure, Membership, Model, Task, Version
from expunge_service.infra.tenants import recipes_of
from expunge_workers.scheduler.run import sweep
from expunge_workers.storage import erase_due
from expunge_workers.training.calibrate import CalibrationUnits
from expunge_workers.training.keyed_parts import KeyedParts
from expunge_workers.training.units import assist
from tests.workers.worlds import RECIPES, World, open_world

ONE, TWO = "one", "two"
Ask = Callable[..., Any]


@pytest.fixture
def shared(settings: Settings, tmp_path: Path) -> Iterator[World]:
    """Two tenants beside the default one. Each has a recipe ``convex``; ``secret`` is the first one's alone."""
    root = tmp_path / "recipes"
    for tenant, name in ((ONE, "convex"), (ONE, "secret"), (TWO, "convex")):
        folder = recipes_of(root, tenant)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(RECIPES / "convex.py", folder / f"{name}.py")
        for beside in ("people.py", "people.csv"):
            shutil.copy(RECIPES / beside, folder)
    world = open_world(settings.model_copy(update={"recipes": root}))
    yield world
    world.storage.close()


@pytest.fixture
def ask(shared: World) -> Iterator[Ask]:
    """Calls the API as a tenant, with every scope."""
    keys = {}
    for tenant in (ONE, TWO, "default"):
        with shared.database.write() as session:
            pepper = shared.storage.pepper
            keys[tenant] = create_key(session, pepper, label="t", scopes=list(Scope), tenant_id=tenant).secret
    with TestClient(create_app(shared.settings)) as client:

        def call(tenant: str, verb: str, path: str, /, **body: Any) -> Any:
            headers = {"Authorization": f"Bearer {keys[tenant]}", "Idempotency-Key": new_id()}
            return client.request(verb, path, json=body or None, headers=headers)

        yield call


def register(ask: Ask, shared: World, tenant: str, recipe: str, name: str = "m") -> str:
    """The status that the model comes to, or the code of the refusal."""
    body = {"name": name, "recipe": recipe, "method": "recollection", "max_accuracy_drop": None}
    answer = ask(tenant, "POST", "/v1/models", **body)
    if answer.status_code != 202:
        return str(answer.json()["code"])
    with shared.database.read() as session:
        model = session.scalars(select(Model).where(Model.tenant_id == tenant, Model.name == name)).one()
    shared.work(model.id)
    return str(ask(tenant, "GET", f"/v1/models/{name}").json()["status"])


@pytest.mark.parametrize(
    ("tenant", "recipe"),
    [(TWO, "secret"), (TWO, "one/secret"), (TWO, "@one/secret"), ("default", "@one/secret"), ("default", "secret")],
)
def test_a_tenant_reaches_no_recipe_of_another(shared: World, ask: Ask, tenant: str, recipe: str) -> None:
    assert register(ask, shared, ONE, "secret") == "live"
    assert register(ask, shared, tenant, recipe) != "live"
    cost = ask(tenant, "POST", "/v1/deletion-requests/estimate", subject_id="p1").json()
    assert (cost["samples"], cost["models"]) == (0, [])
    for path in ("checkpoint", ""):
        assert ask(tenant, "GET", f"/v1/models/m/versions/1/{path}".rstrip("/")).status_code == 404
    assert ask(ONE, "POST", "/v1/deletion-requests/estimate", subject_id="p1").json()["samples"] == 3


def test_the_same_person_has_another_digest_in_every_tenant(shared: World, ask: Ask) -> None:
    digests = {}
    for tenant in (ONE, TWO):
        assert register(ask, shared, tenant, "convex") == "live"
        with shared.database.read() as session:
            theirs = select(Membership).join(Model, Model.generation_id == Membership.generation_id)
            rows = session.scalars(theirs.where(Model.tenant_id == tenant)).all()
        digests[tenant] = {
            each for row in rows for each in (row.subject_digest, row.sample_digest, row.content_digest, row.holder)
        }
    assert len(digests[ONE]) == len(digests[TWO]) > 12
    assert digests[ONE].isdisjoint(digests[TWO])
    assert ask(ONE, "POST", "/v1/deletion-requests", subject_id="p1").json()["status"] == "queued"
    for tenant in (ONE, TWO):
        with shared.database.read() as session:
            models = session.scalars(select(Model.id).where(Model.tenant_id == tenant)).all()
        shared.work(models[0])
        left = ask(tenant, "POST", "/v1/deletion-requests/estimate", subject_id="p1").json()["samples"]
        assert left == (0 if tenant == ONE else 3)


def test_a_worker_does_no_work_of_a_tenant_that_its_settings_do_not_name(shared: World, ask: Ask) -> None:
    mine = shared.configured(tenants=TWO)
    theirs = shared.configured(tenants=ONE)
    body = {"name": "m", "recipe": "convex", "method": "recollection", "max_accuracy_drop": None}
    assert ask(ONE, "POST", "/v1/models", **body).status_code == 202
    model_id = shared.model_named("m")
    mine.work(model_id)
    assert not assist(mine.process, model_id, [KeyedParts, CalibrationUnits])
    model = mine.model(model_id)
    assert (model.status, mine.lease(model_id).token, model.notified_at) == ("preparing", 0, 0)
    assert sweep(shared.database, shared.process.notifier) == 1, "the bell rings again for a worker that serves them"
    theirs.work(model_id)
    assert theirs.model(model_id).status == "live"
    request = ask(ONE, "POST", "/v1/deletion-requests", subject_id="p1").json()["id"]
    mine.work(model_id)
    assert [task.status for task in shared.rows_of(Task)] == ["queued"]
    theirs.work(model_id)
    assert shared.request(request).status == "completed"


def test_a_process_destroys_no_key_of_a_tenant_that_it_does_not_serve(shared: World, ask: Ask) -> None:
    """Its key store may never have held the key: that it is not there would prove nothing."""
    assert register(ask, shared, ONE, "convex") == "live"
    ask(ONE, "POST", "/v1/deletion-requests", subject_id="p1")
    shared.work(shared.model_named("m"))
    (erasure,) = shared.rows_of(Erasure)
    shared.change(Erasure, erasure.id, destroyed_at=None)
    first = shared.versions(shared.model_named("m"))[0]
    shared.change(Version, first.id, state_deleted_at=None)
    storage = shared.storage
    place = (storage.database, storage.private, storage.keys, storage.guard.witness)
    assert erase_due(*place, frozenset({TWO})) == 0
    assert shared.rows_of(Erasure)[0].destroyed_at is None
    assert shared.versions(shared.model_named("m"))[0].state_deleted_at is None
    assert erase_due(*place, frozenset({ONE, TWO})) == 2


def test_a_setting_lists_the_tenants_and_a_malformed_name_is_refused(tmp_path: Path) -> None:
    assert Settings(home=tmp_path).served_tenants is None
    assert Settings(home=tmp_path, tenants=" one, two ,").served_tenants == {ONE, TWO}
    with pytest.raises(SettingsError, match=r"A tenant is 1 to 63"):
        Settings(home=tmp_path, tenants="one,../two")
    with pytest.raises(ValueError):
        recipes_of(tmp_path, "../two")
    assert recipes_of(tmp_path, "default") == tmp_path
