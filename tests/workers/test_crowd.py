"""Thousands of requests at an exhausted budget: one plan, one alert, one retrain, and everybody is done."""

from __future__ import annotations

from typing import cast

import pytest
from sqlalchemy import func, select

from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import (
    AuditEntry,
    DeletionRequest,
    Generation,
    Model,
    Task,
    WebhookDelivery,
    WebhookEndpoint,
)
from expunge_service.models.retrain_plan import plan_of
from expunge_service.queue import Deletions
from expunge_service.requests import intake
from tests.workers.training.test_retrain import entries
from tests.workers.worlds import TENANT, World
from unlearning.accounting.certificate import Claim, Guarantee

CROWDS = (200, *(pytest.param(count, marks=pytest.mark.drill) for count in (1_000, 5_000)))


@pytest.mark.both_engines
@pytest.mark.parametrize("database_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.drill)], indirect=True)
@pytest.mark.parametrize("waiting", CROWDS)
def test_a_crowd_at_an_exhausted_budget_is_one_plan_one_alert_and_one_retrain(world: World, waiting: int) -> None:
    asked = {"guarantee": "proved", "epsilon": 1.0, "noise_std": 6e-5, "max_distance": 1.08e-5, "fallback": "retrain"}
    world.write_people(2 * waiting + 10)
    model_id = world.live("crowd", "newton", **asked)
    listen(world)
    first = 0
    while world.model(model_id).status == "live":
        world.delete(f"p{first}")
        world.work(model_id)
        first += 1
    before = world.head(model_id)
    with world.database.write() as session:
        for index in range(first, first + waiting):
            intake.accept(session, world.storage.pepper, TENANT, intake.Order(subject_id=f"p{index}"))
    with world.database.read() as session:
        plan = plan_of(session, session.get_one(Model, model_id))
    assert plan is not None and (plan.reason, plan.waiting) == ("budget_exhausted", waiting)
    world.work(model_id)
    assert statuses(world, DeletionRequest) == {"completed": first + waiting}
    assert statuses(world, Task) == {"completed": first + waiting}
    head, claim = world.head(model_id), Claim.from_json(world.head(model_id).claim)
    assert (head.number, head.samples, head.people) == (before.number + 1, waiting, waiting)
    assert (claim.guarantee, world.generation(model_id).spent, world.model(model_id).status) == (
        Guarantee.EXACT,
        0,
        "live",
    )
    kinds = {kind: count_of(world, kind) for kind in ("retrain.planned", "retrain.claimed", "budget.exhausted")}
    assert kinds == {"retrain.planned": 1, "retrain.claimed": 1, "budget.exhausted": 1}
    assert [row.kind for row in world.rows_of(WebhookDelivery)] == ["budget.exhausted"]
    assert world.count(Generation) == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_entry_of_the_log_names_at_most_500_requests(world: World) -> None:
    """Who proves one entry is sent all of it."""
    world.write_people(510)
    model_id = world.live("crowd", "newton")
    orders = [intake.Order(subject_id=f"p{index}") for index in range(501)]
    with world.database.write() as session:
        intake.accept_all(session, world.storage.pepper, TENANT, orders)
    job = world.claim(model_id)
    assert isinstance(job, Deletions) and len(job.tasks) == 501
    assert sorted(len(cast("list[str]", each["requests"])) for each in entries(world, "update.claimed")) == [1, 500]


def listen(world: World) -> None:
    """An endpoint that wants to hear of exhausted budgets."""
    with world.database.write() as session:
        session.add(
            WebhookEndpoint(
                id=new_id(),
                tenant_id=TENANT,
                url="https://controller.example/hook",
                kinds=["budget.exhausted"],
                created_at=1,
            )
        )


def statuses(world: World, record: type[DeletionRequest] | type[Task]) -> dict[str, int]:
    with world.database.read() as session:
        rows = session.execute(select(record.status, func.count()).group_by(record.status))
        return {status: count for status, count in rows}


def count_of(world: World, kind: str) -> int:
    with world.database.read() as session:
        return session.scalar(select(func.count()).where(AuditEntry.kind == kind)) or 0
