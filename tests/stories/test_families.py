"""Recipe families over HTTP: after deletions a version is what a registration that never held the people publishes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.contract.families.data import LEAVERS, files_of
from tests.contract.families.judge import Family
from tests.contract.families.test_families import EVERY_FAMILY, REFUSED, SEVEN, require_libraries
from tests.harness.stack import Stack, running

CASES = [(name, kind) for name, family in EVERY_FAMILY.items() for kind in family.kinds]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A service whose recipes lie in folders that everybody may read: walls alone keep them apart."""
    above = tmp_path_factory.mktemp("families")
    above.chmod(0o755)
    sources = json.dumps({"crm": f"sqlite:///{above}/crm.db"})
    with running(above / "home", above / "recipes", None, TRIAL_SECONDS="0", SOURCES=sources) as stack:
        yield stack


def lay_out(stack: Stack, family: Family, kind: str, name: str, *never: str) -> None:
    """Write a family's recipe and its tables into a folder of this name; its database takes the place of the last."""
    folder = stack.settings.recipes / name
    folder.mkdir(parents=True)
    constants = f"FOLDER = {str(folder)!r}\nNAME = 'families'\nKEY = 77\nPORT = 1\nSOCKET = '/run/none'\n"
    code = family.code(kind) | {"place.py": f"{constants}NEVER_IN = {sorted(LEAVERS.values())}\n"}
    for file, content in {**files_of(*never), **{path: text.encode() for path, text in code.items()}}.items():
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)
    (folder / "people.db").rename(stack.home.parent / "crm.db")


def published(stack: Stack, model: str) -> bytes:
    headers = {"Authorization": f"Bearer {stack.account.api_key}"}
    number = stack.head(model)["number"]
    answer = stack.http.get(f"/v1/models/{model}/versions/{number}/checkpoint", headers=headers)
    answer.raise_for_status()
    return answer.content


def assert_forgets(stack: Stack, family: Family, kind: str, leavers: list[str]) -> None:
    name = str(family).replace(".", "-") + f"-{kind}-{len([*stack.settings.recipes.glob('*')])}"
    people = [LEAVERS[leaver] for leaver in leavers]
    lay_out(stack, family, kind, f"{name}-held")
    if str(family) in REFUSED:
        state = stack.prepared(stack.register(f"{name}-held", "retrain"))
        assert state["status"] == "refused" and "SQL" in state["reason"]
        return
    held = stack.live(f"{name}-held", "retrain")
    for person in people:
        stack.forgotten(held, subject_id=person)
    lay_out(stack, family, kind, f"{name}-never", *people)
    never = stack.live(f"{name}-never", "retrain")
    assert published(stack, held) == published(stack, never), f"{family} tells of somebody who left"
    claim = stack.head(held)["claim"]
    assert claim["guarantee"] == "exact" and claim["world"]["walls"] == "new root"


@pytest.mark.parametrize("name", SEVEN)
def test_seven_families(service: Stack, name: str) -> None:
    kind, leaver = SEVEN[name]
    require_libraries(EVERY_FAMILY[name])
    assert_forgets(service, EVERY_FAMILY[name], kind, [leaver])


@pytest.mark.drill
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_family(service: Stack, name: str, kind: str) -> None:
    require_libraries(EVERY_FAMILY[name])
    assert_forgets(service, EVERY_FAMILY[name], kind, [*LEAVERS])
