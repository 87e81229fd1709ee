"""Admission checks of other packages: whom they name is not trained on, and one that cannot be asked admits nobody."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import Membership
from expunge_service.requests.legal_holds import place_hold
from expunge_workers.training import admission
from tests.workers.worlds import TENANT, World


@dataclass
class Answer:
    leave_out: Collection[str] = ()
    refusal: str | None = None


def names_p1(tenant: str, people: Collection[str]) -> Answer:
    assert tenant == TENANT and "p2" in people
    return Answer(leave_out=["p1", "somebody who is not in the recipe"])


def cannot_tell(tenant: str, people: Collection[str]) -> Answer:
    return Answer(refusal="three entries name nobody. Run this or that.")


def fails(tenant: str, people: Collection[str]) -> Answer:
    raise OSError("p1 is on no disk")


def install(monkeypatch: pytest.MonkeyPatch, *checks: str) -> None:
    found = [EntryPoint(each.rpartition(":")[2], each, admission.GROUP) for each in checks]
    monkeypatch.setattr(admission, "entry_points", lambda group: found if group == admission.GROUP else [])


def here(name: str) -> str:
    return f"{__name__}:{name}"


def members(world: World, model_id: str) -> set[str]:
    generation = world.generation(model_id).id
    digests = {row.subject_digest for row in world.rows_of(Membership) if row.generation_id == generation}
    everyone = {f"p{number}" for number in range(12)}
    return {each for each in everyone if subject_digest(world.storage.pepper, TENANT, each) in digests}


def reason(world: World, model_id: str) -> str:
    world.work(model_id)
    assert world.model(model_id).status == "refused"
    return world.model(model_id).reason or ""


def test_whom_a_check_names_is_not_trained_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, here("names_p1"))
    model_id = world.live()
    assert members(world, model_id) == {f"p{number}" for number in range(12)} - {"p1"}
    assert "admission.left_out" in world.kinds()


def test_whom_a_legal_hold_keeps_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.database.write() as session:
        place_hold(session, world.storage.pepper, TENANT, subject_id="p1", sample_id=None, reason="court")
    install(monkeypatch, here("names_p1"))
    assert "p1" in members(world, world.live())


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (here("cannot_tell"), "The admission check cannot_tell refuses: three entries name nobody. Run this or that."),
        (here("fails"), "The admission check fails could not be asked (OSError), so no person is trained on."),
        ("no_such_package:gone", "The admission check gone could not be asked (ModuleNotFoundError)"),
    ],
)
def test_a_check_that_cannot_tell_or_cannot_be_asked_refuses_the_registration(
    world: World, monkeypatch: pytest.MonkeyPatch, check: str, said: str
) -> None:
    install(monkeypatch, here("names_p1"), check)
    told = reason(world, world.register())
    assert said in told and "register again" in told and "p1" not in told


def test_a_check_that_must_be_asked_and_is_not_installed_refuses_by_its_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, here("names_p1"))
    strict = world.configured(admission="names_p1, elsewhere")
    told = reason(strict, strict.register())
    assert "The admission check elsewhere is not installed where this worker runs (EXPUNGE_ADMISSION)." in told
