"""What a deletion may ask that cannot be done, or need not: a stated outcome for each, and nothing is lost."""

from __future__ import annotations

import pytest

from expunge_service.infra.tables import BudgetEntry, DeletionRequest, Removal
from expunge_service.requests import legal_holds
from tests.workers import meanwhile
from tests.workers.training.test_retrain import entries, exhausted, generations
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee
from unlearning.methods import OWN

METHODS = ("newton", "retrain")
ONE_CLASS = ("p0", "p1", "p2")


@pytest.mark.parametrize("method", METHODS)
def test_everyone_is_held_and_the_model_stays_as_it_is(world: World, method: str) -> None:
    model_id = world.live(method=method)
    head = world.head(model_id).id
    requests = [world.delete(f"p{index}") for index in range(12)]
    world.work(model_id)
    assert {(world.request(each).status, world.request(each).reason) for each in requests} == {
        ("blocked", "no_data_left")
    }
    assert (world.head(model_id).id, world.count(Removal), world.count(BudgetEntry)) == (head, 0, 0)


def test_everyone_at_an_exhausted_budget_is_held_with_the_reason(world: World) -> None:
    model_id = exhausted(world)
    head = world.head(model_id).id
    requests = [world.delete(f"p{index}") for index in range(12)]
    world.work(model_id)
    waiting = [each for each in requests if world.request(each).status != "completed"]
    assert {(world.request(each).status, world.request(each).reason) for each in waiting} == {
        ("blocked", "retrain_refused")
    }
    assert "Everyone" in (world.model(model_id).reason or "")
    assert (world.head(model_id).id, generations(world, model_id)[-1].status) == (head, "refused")


def test_everyone_of_one_class_is_held_because_the_method_refuses(world: World) -> None:
    model_id = world.live("classes", method="newton")
    requests = [world.delete(person) for person in ONE_CLASS]
    world.work(model_id)
    assert {(world.request(each).status, world.request(each).reason) for each in requests} == {
        ("blocked", "needs_retrain")
    }
    detail = str(entries(world, "update.blocked")[0]["detail"])
    assert "class" in detail and not any(letter.isdigit() for letter in detail)
    assert world.head(model_id).number == 1


def test_a_cold_retrain_can_do_without_a_class(world: World) -> None:
    """The proof needs two classes, exactness does not."""
    model_id = world.live("classes", method="retrain")
    requests = [world.delete(person) for person in ONE_CLASS]
    world.work(model_id)
    assert {world.request(each).status for each in requests} == {"completed"}
    assert Claim.from_json(world.head(model_id).claim).guarantee is Guarantee.EXACT


def test_the_fallback_forgets_everyone_of_one_class_exactly_and_serves_on(world: World) -> None:
    model_id = world.live("classes", method="newton", fallback="retrain")
    requests = [world.delete(person) for person in ONE_CLASS]
    world.work(model_id)
    assert {world.task(each).reason for each in requests} == {"awaiting_retrain"}
    world.work(model_id)
    assert {(world.request(each).status, world.task(each).samples) for each in requests} == {("completed", 3)}
    assert Claim.from_json(world.head(model_id).claim).guarantee is Guarantee.EXACT
    other = world.delete("p7")
    world.work(model_id)
    world.work(model_id)
    assert (world.request(other).status, world.head(model_id).number) == ("completed", 3)


@pytest.mark.parametrize("method", METHODS)
def test_a_class_with_one_sample_left_is_released(world: World, method: str) -> None:
    model_id = world.live("classes", method=method, granularity="sample", threshold=10.0)
    requests = [world.delete(samples=[f"s{index}"]) for index in range(8)]
    world.work(model_id)
    assert {world.request(each).status for each in requests} == {"completed"}
    assert world.head(model_id).samples == 8
    last = world.delete(samples=["s8"])
    world.work(model_id)
    task = world.task(last)
    assert (task.status, task.reason) == (("completed", None) if method == "retrain" else ("blocked", "needs_retrain"))


def test_a_held_request_is_released_when_somebody_makes_it_possible(world: World) -> None:
    """Held is not lost: the rest of the batch can be retried by itself."""
    model_id = world.live("classes")
    requests = [world.delete(person) for person in ONE_CLASS]
    world.work(model_id)
    with world.database.write() as session:
        legal_holds.retry(session, session.get_one(DeletionRequest, requests[0]))
    world.work(model_id)
    assert [world.request(each).status for each in requests] == ["completed", "blocked", "blocked"]


def test_someone_twice_is_forgotten_once(world: World) -> None:
    model_id = world.live()
    together = [world.delete("p3"), world.delete("p3")]
    world.work(model_id)
    later = world.delete("p3")
    world.work(model_id)
    assert [world.task(each).samples for each in (*together, later)] == [3, 3, 0]
    assert (world.task(later).reason, world.count(Removal)) == ("already_deleted", 3)
    assert [version.number for version in world.versions(model_id)] == [1, 2]


def test_nobody_known_is_completed_without_a_release(world: World) -> None:
    model_id = world.live()
    unknown, samples = world.delete("nobody"), world.delete(samples=["nothing"])
    world.work(model_id)
    assert {(world.request(each).status, world.request(each).reason) for each in (unknown, samples)} == {
        ("completed", "no_match")
    }
    assert world.head(model_id).number == 1


QUICK = ("retrain", "late", "recollection", "safe")
"""one of each kind; what becomes of a deletion under the others is a drill"""


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in QUICK else pytest.mark.drill) for name in OWN]
)
def test_every_method_has_a_stated_outcome_for_what_is_strange(world: World, method: str) -> None:
    """Nobody; someone twice, at once and later; a class but one; the last of it; everyone. The current version stays
    sound.
    """
    options = {"reach": 0.1} if method == "safe" else {}
    recipe = "own_training" if method == "late" else "steps"
    model_id = world.live(recipe, method, threshold=1e3, granularity="sample", options=options)
    ids, _, _, targets = meanwhile.people()
    zeros = [name for name, target in zip(ids, targets.tolist(), strict=True) if target == 0]
    ones = [name for name, target in zip(ids, targets.tolist(), strict=True) if target == 1]

    def asked(*samples: str) -> tuple[str, str | None, int | None]:
        request = world.delete(samples=list(samples))
        world.work(model_id)
        task = world.task(request)
        return task.status, task.reason, task.samples

    nobody = world.delete("nobody")
    world.work(model_id)
    assert (world.request(nobody).status, world.request(nobody).reason) == ("completed", "no_match")
    assert asked(ones[0], ones[0]) == ("completed", None, 1)
    assert asked(ones[0]) == ("completed", "already_deleted", 0)
    assert asked(*zeros[1:]) == ("completed", None, len(zeros) - 1)
    before = world.head(model_id).number
    assert asked(zeros[0])[0] == "completed"
    assert world.head(model_id).number == before + 1
    head = world.head(model_id).id
    assert asked(*zeros, *ones)[:2] == ("blocked", "no_data_left")
    assert world.head(model_id).id == head
