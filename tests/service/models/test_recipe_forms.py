"""Models that were registered with a recipe of the old form are counted, by what they wait for."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient

from expunge_service.api.dependencies import Service
from expunge_service.infra.tables import Generation, Model, Task
from expunge_service.models.recipe_forms import NAMED, OldForms, old_forms
from expunge_service.requests import Reason
from tests.service.models.test_port import WITH_ROWS
from tests.service.worlds import live_model


def counted(service: Service, recipes: Path) -> OldForms:
    with service.database.read() as session:
        return old_forms(session, recipes)


def test_models_wait_for_a_rewrite_or_a_port_and_requests_with_them(service: Service, tmp_path: Path) -> None:
    for name in ("cat", "ant", "bee", "dog", "eel"):
        model = live_model(service, name)
        with service.database.write() as session:
            session.get_one(Model, model.id).recipe = name
            if name == "dog":
                session.get_one(Generation, model.generation_id).manifest = {"with_rows": True}
            if name == "eel":
                session.get_one(Model, model.id).status = "retired"
    (tmp_path / "ant.py").write_text("def recipe():\n    ...\n")
    (tmp_path / "bee.py").write_text(WITH_ROWS)
    (tmp_path / "dog.py").write_text(WITH_ROWS)
    found = counted(service, tmp_path)
    assert found == OldForms(served=4, unwritten=["ant", "cat"], unported=["bee"], blocked=0)
    assert found.rewrites() == (
        "2 of 4 models wait for a rewrite of the recipe: ant, cat. They are served, and no deletion is carried out on "
        "them until then; docs/rows.md says how."
    )
    assert found.ports() == (
        "1 of 4 models waits for a port to the rewritten recipe: bee. 0 requests wait as recipe_form."
    )


def test_blocked_requests_are_counted_and_where_nothing_waits_nothing_is_said(
    service: Service, client: TestClient, tmp_path: Path
) -> None:
    model = live_model(service)
    assert client.post("/v1/deletion-requests", json={"subject_id": "ada"}, headers={"Idempotency-Key": "x"}).is_success
    with service.database.write() as session:
        task = session.query(Task).one()
        task.status, task.reason = "blocked", Reason.RECIPE_FORM
    (tmp_path / "digits.py").write_text(WITH_ROWS)
    found = counted(service, tmp_path)
    assert (found.rewrites(), found.blocked) == ("", 1)
    assert found.ports().endswith("1 request waits as recipe_form.")
    with service.database.write() as session:
        session.get_one(Generation, model.generation_id).manifest = {"with_rows": True}
    assert counted(service, tmp_path).ports() == ""


def test_a_long_list_of_models_is_cut() -> None:
    names = [f"m{number}" for number in range(NAMED + 5)]
    said = OldForms(served=30, unwritten=names, unported=[], blocked=0).rewrites()
    assert "m19 and 5 more." in said and "m20" not in said
