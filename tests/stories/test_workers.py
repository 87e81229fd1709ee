"""Four worker processes, several models, work units: one of them is killed, and nothing but its own work unit is
done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import func, select

from expunge_service.infra.tables import Model, Removal, StoredVector, WorkUnit
from tests.harness.stack import Stack, running
from tests.stories.conftest import SETTINGS, recipes_in, servers_of

WORKERS, MODELS, PEOPLE, WORK_UNITS = 4, 3, 264, 4
pytestmark = pytest.mark.drill


@pytest.fixture(params=["sqlite", "postgres"])
def crew(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A service of its own with four workers."""
    recipes = recipes_in(tmp_path_factory.mktemp("recipes"))
    with running(tmp_path_factory.mktemp("home"), recipes, servers_of(request), **SETTINGS) as started:
        started.more_workers(WORKERS - 1)
        started.eventually(lambda: alive(started), lambda count: count == WORKERS)
        yield started


def alive(stack: Stack) -> int:
    text = stack.http.get("/metrics").text
    return sum(1 for line in text.splitlines() if line.startswith("expunge_worker_heartbeat_timestamp_seconds{")) - 1


def test_four_workers_share_several_preparations_and_one_is_killed(crew: Stack) -> None:
    names = [crew.register("shared_out") for _ in range(MODELS)]
    early = crew.delete(subject_id="tiny-person-7")
    seen: dict[tuple[int, int], tuple[str, int]] = {}
    crew.eventually(lambda: observed(crew, seen), lambda done: done >= 2)
    before = dict(seen)
    crew.kill("worker-2")
    while any(crew.client.get(f"/v1/models/{name}")["status"] == "preparing" for name in names):
        observed(crew, seen)
    assert all(crew.prepared(name)["status"] == "live" for name in names), crew.logs()
    assert {key: seen[key] for key in before} == before, "a work unit that was done was done again"
    owners = {owner for owner, _ in seen.values()}
    print(f"{len(seen)} work units seen done by {len(owners)} workers; {len(before)} of them before the kill")
    assert len(owners) >= 2

    assert crew.ended(early)["status"] == "completed"
    for name in names:
        assert held(crew, name) == PEOPLE - 1, "who asked meanwhile is in no model"
    late = [crew.delete(subject_id=f"tiny-person-{number}") for number in range(20, 30)]
    for request in late:
        done = crew.ended(request)
        assert (done["status"], done["samples"]) == ("completed", MODELS)
    for name in names:
        assert held(crew, name) == PEOPLE - 11
        assert effects(crew, name) <= 11, "each person was forgotten once"
        numbers = sorted(version["number"] for version in crew.client.pages(f"/v1/models/{name}/versions"))
        assert numbers == list(range(1, len(numbers) + 1))


def observed(stack: Stack, seen: dict[tuple[int, int], tuple[str, int]]) -> int:
    """Note the work units that are done, who did each and when; how many that are so far."""
    query = select(WorkUnit.generation_id, WorkUnit.number, WorkUnit.owner, WorkUnit.done_at).where(
        WorkUnit.done_at.is_not(None)
    )
    database = stack.database()
    with database.read() as session:
        for generation, number, owner, at in session.execute(query):
            seen[generation, number] = (str(owner), int(at))
    database.close()
    return len(seen)


def held(stack: Stack, name: str) -> int:
    """How many people's vectors the model still holds."""
    return counted(stack, name, lambda generation: select(func.count()).where(StoredVector.generation_id == generation))


def effects(stack: Stack, name: str) -> int:
    return counted(stack, name, lambda generation: select(func.count()).where(Removal.generation_id == generation))


def counted(stack: Stack, name: str, query: Callable[[int], object]) -> int:
    database = stack.database()
    with database.read() as session:
        generation = session.scalars(select(Model.generation_id).where(Model.name == name)).one()
        count = session.scalar(query(int(generation or 0))) or 0  # type: ignore[call-overload]
    database.close()
    return int(count)
