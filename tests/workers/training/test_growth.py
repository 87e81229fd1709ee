"""A table that grows by 5 % a week for weeks under one name, with deletions between and consumers that follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import select

from expunge_service.audit.log import integrate
from expunge_service.audit.signed_note import Signer
from expunge_service.certificates import envelope
from expunge_service.certificates.issue import issue_due
from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import BudgetEntry, Certificate, Generation, Membership, Model, Version
from expunge_service.models import consumers
from expunge_service.models.retrain_plan import plan_new_data
from expunge_workers.scheduler import run
from tests.workers.tables import Table, table_of
from tests.workers.training.test_retrain import generations
from tests.workers.worlds import TENANT, World
from unlearning.accounting.certificate import Claim, Guarantee

PEOPLE = 60
WEEK_SECONDS = 7 * 86_400


def serve(world: World, model_id: str) -> None:
    """The consumer moves to the current version, as one that asks for it by the model's name does."""
    with world.database.write() as session:
        model = session.get_one(Model, model_id)
        consumers.report_consumer(session, model, "web", session.get_one(Version, model.current_id), "actor")


def members(world: World, generation_id: int) -> set[str]:
    with world.database.read() as session:
        rows = select(Membership.subject_digest).where(Membership.generation_id == generation_id)
        return set(session.scalars(rows))


def retrain(world: World, model_id: str, week: int) -> None:
    """Plan the week's retrain by hand in even weeks; by the schedule, whose moment has come, in odd ones."""
    with world.database.write() as session:
        model = session.get_one(Model, model_id)
        if week % 2:
            model.retrain_at = now(session) - 1
        else:
            plan_new_data(session, model, dry_run=False)


def certificates(world: World) -> dict[str, dict[str, object]]:
    """Issue what can be issued; return each request's statement, whose signature is checked."""
    signer = Signer.of(world.settings)
    with world.database.write() as session:
        integrate(session, signer)
    while issue_due(world.database, signer, world.storage.pepper):
        pass
    with world.database.read() as session:
        rows = session.execute(select(Certificate.request_id, Certificate.envelope)).all()
    return {request: envelope.verify(json.loads(text), signer.verifier) for request, text in rows if text}


def grow(table: Table, week: int) -> list[str]:
    """Let the table grow by about 5 %: new people, and one more row of somebody who is there already."""
    newcomers = table.grow(max(1, round(0.05 * len(table.rows) / 3)))
    table.add(f"p{week}", 1)
    table.write()
    return newcomers


@pytest.mark.parametrize("weeks", [2, pytest.param(10, marks=pytest.mark.drill)])
def test_weeks_of_growth_and_deletions_under_one_name(world: World, tmp_path: Path, weeks: int) -> None:
    world, table = table_of(world, tmp_path / "tables", PEOPLE)
    model_id = world.live("people", guarantee="proved", complete_when="served", retrain_every=WEEK_SECONDS)
    serve(world, model_id)
    asked: dict[str, str] = {}
    for week in range(weeks):
        newcomers = grow(table, week)
        there = dict.fromkeys(person for _, person in table.rows)
        old = [name for name in there if name not in asked and name not in newcomers]
        leaving = [old[week], old[-1], newcomers[0]]
        for name in leaving:
            asked[name] = world.delete(name)
            world.work(model_id)
            serve(world, model_id)
        updates = 2  # the newcomer was in the table and not yet in the model
        spending = world.generation(model_id)
        assert spending.spent == updates * spending.budget_cost > 0
        retrain(world, model_id, week)
        if week % 3 == 0:
            table.drop(leaving[0])  # the operator removes some of them from the source, and leaves the others
            table.write()
        world.work(model_id)
        serve(world, model_id)
        run.complete_served(world.database)
        open_requests = {name: world.request(each).status for name, each in asked.items()}
        assert set(open_requests.values()) == {"completed"}, (week, open_requests)
        served = world.generation(model_id)
        gone = {subject_digest(world.storage.pepper, TENANT, name) for name in asked}
        assert not members(world, served.id) & gone, f"somebody is back in week {week}"
        staying = {name for _, name in table.rows if name not in asked}
        assert members(world, served.id) == {subject_digest(world.storage.pepper, TENANT, name) for name in staying}
        assert (served.status, served.spent, served.budget_cost > 0) == ("live", 0, True)
    _require_the_record(world, model_id, asked, weeks)


def _require_the_record(world: World, model_id: str, asked: dict[str, str], weeks: int) -> None:
    """Check versions, budgets and certificates at the end: one name, a generation more than weeks, no gap."""
    versions = world.versions(model_id)
    assert [each.number for each in versions] == list(range(1, 1 + len(versions)))
    assert len(versions) == 1 + weeks * 3  # two updates and a switch a week
    assert world.claims_logged(model_id) == len(versions)
    every = generations(world, model_id)
    assert [each.status for each in every] == ["ended"] * weeks + ["live"]
    with world.database.read() as session:
        charges = session.execute(select(BudgetEntry.generation_id, BudgetEntry.budget_cost)).all()
    for generation in every[:-1]:
        own = [cost for number, cost in charges if number == generation.id and cost]
        assert own == [generation.budget_cost] * 2 and generation.spent == sum(own)
    first = {each.generation_id: Claim.from_json(each.claim) for each in reversed(versions)}
    switches = [first[each.id] for each in every[1:]]
    assert {claim.guarantee for claim in switches} == {Guarantee.EXACT}
    assert all(Claim.from_json(each.claim).spent <= every[0].budget for each in versions)
    found = certificates(world)
    forgotten = {request for request in asked.values() if world.request(request).reason is None}
    assert len(forgotten) == 2 * weeks
    assert set(found) == forgotten, "who was in no model has nothing to be certified"
    with world.database.read() as session:
        assert session.scalars(select(Generation.id).where(Generation.status == "refused")).all() == []
