"""A registration is refused at once where its recipe does not exist, and a refused one gives its name up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.api.dependencies import Service
from expunge_service.infra.tables import AuditEntry, Generation, Model
from expunge_service.models import registration
from expunge_service.models.recipe_files import require_recipe
from expunge_service.requests.states import RequestRefused
from unlearning.accounting.policy import Policy

POLICY = {"method": "recollection"}
GOOD = {
    "function": "def recipe():\n    return 1\n",
    "assignment": "recipe = print\n",
    "import": "from somewhere import recipe\n",
    "renamed": "from somewhere import other as recipe\n",
}
BAD = {
    "empty": ("", "does not define recipe"),
    "inside": ("def other():\n    def recipe(): ...\n", "does not define recipe"),
    "no python": ("import sys\ndef recipe(:\n", "not valid Python: see line 2"),
    "null bytes": ("\0", "not valid Python"),
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
@pytest.mark.parametrize("place", ["mine.py", "mine/recipe.py"])
def test_a_recipe_is_found_without_running_it(tmp_path: Path, place: str, text: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text(f"raise SystemExit\n{text}")
    require_recipe(tmp_path, "mine")
    assert "mine" not in sys.modules


@pytest.mark.parametrize(("text", "told"), BAD.values(), ids=BAD)
def test_a_file_that_is_no_recipe_is_refused_with_what_to_do(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(RequestRefused, match=told) as refused:
        require_recipe(tmp_path, "mine")
    assert refused.value.errors[0]["detail"]


def test_a_file_that_the_api_cannot_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(GOOD["function"])

    def denied(_: Path) -> bytes:
        raise PermissionError

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(RequestRefused, match=r"cannot read the recipe's file \(PermissionError\)"):
        require_recipe(tmp_path, "mine")


@pytest.mark.parametrize("recipe", ["nowhere", "digits/nowhere", "serving"])
def test_a_recipe_that_does_not_exist_is_refused_at_once_and_writes_nothing(
    client: TestClient, service: Service, recipe: str
) -> None:
    answer = client.post("/v1/models", json={"name": "mine", "recipe": recipe} | POLICY)
    assert (answer.status_code, answer.json()["code"]) == (422, "no_recipe")
    assert answer.json()["errors"][0]["pointer"] == "/recipe" and recipe not in answer.text
    with service.database.read() as session:
        assert session.scalars(select(Model)).all() == [] and session.scalars(select(Generation)).all() == []
    assert client.post("/v1/models", json={"name": "mine", "recipe": "digits"} | POLICY).status_code == 202


def test_a_registration_that_was_refused_gives_its_name_up(client: TestClient, service: Service) -> None:
    body = {"name": "mine", "recipe": "digits"} | POLICY
    ids = []
    for _ in range(3):
        assert client.post("/v1/models", json=body).status_code == 202
        assert client.post("/v1/models", json=body).status_code == 409
        with service.database.write() as session:
            model = session.scalars(select(Model).where(Model.name == "mine")).one()
            model.status = "refused"
            ids.append(model.id)
    assert client.post("/v1/models", json=body).status_code == 202
    names = [model["name"] for model in client.get("/v1/models").json()["data"]]
    assert names == ["mine", "mine-refused-1", "mine-refused-2", "mine-refused-3"]
    with service.database.read() as session:
        renamed = session.scalars(select(AuditEntry.model_id).where(AuditEntry.kind == "model.renamed")).all()
    assert renamed == ids


@pytest.mark.both_engines
def test_the_longest_name_is_given_up_too(service: Service) -> None:
    name = "n" * registration.LONGEST_NAME
    for _ in range(12):
        with service.database.write() as session:
            registration.register(session, "default", name, "digits", Policy.from_json(POLICY)).status = "refused"
    with service.database.read() as session:
        names = session.scalars(select(Model.name)).all()
    assert len(set(names)) == 12 and max(map(len, names)) == registration.LONGEST_NAME


@pytest.mark.parametrize("status", ["preparing", "live", "exhausted", "retired"])
def test_no_other_model_gives_its_name_up(service: Service, status: str) -> None:
    with service.database.write() as session:
        registration.register(session, "default", "mine", "digits", Policy.from_json(POLICY)).status = status
    with service.database.write() as session, pytest.raises(RequestRefused, match="choose another"):
        registration.register(session, "default", "mine", "digits", Policy.from_json(POLICY))
