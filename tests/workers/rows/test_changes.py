"""What becomes of rows and people that came later, were edited, or are gone, and of those who may not be trained on."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from expunge_service.infra.tables import Generation, Model, TrainedPart
from expunge_service.models import plan_new_data
from expunge_service.requests.states import Suppress
from expunge_workers.storage import checkpoint_format, private_state
from tests.workers.rows.data import (
    ALL,
    EVERYBODY,
    TABLE,
    digest_of,
    forget,
    kept_apart,
    lay_out,
    model_of,
    published,
    rows_of,
    trained_on,
    write_csv,
)
from tests.workers.worlds import World

BY_ID = TABLE.format(source='"people.csv", person="person", id="id"')
BY_TIME = TABLE.format(source='"people.csv", person="person", at="at"')


def test_people_who_came_later_wait_for_new_data(world: World, folder: Path) -> None:
    lay_out(folder, range(30), ALL)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain")
    lay_out(folder, range(40), ALL)
    forget(world, held, 3)
    assert model_of(world, held)["rows"] == 29 * 3
    retrain(world, held)
    assert model_of(world, held)["rows"] == 39 * 3


def test_rows_that_came_later_wait_where_the_source_names_rows(world: World, folder: Path) -> None:
    lay_out(folder, recipe=BY_ID)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain")
    late = {"id": 999, "person": "p5", "x": 1.0, "y": 0.5, "word": "late"}
    write_csv(folder / "people.csv", [*rows_of(), late])
    forget(world, held, 3)
    assert model_of(world, held)["rows"] == 39 * 3 and "late" not in model_of(world, held)["words"]
    retrain(world, held)
    assert "late" in model_of(world, held)["words"]


def test_rows_that_came_later_wait_where_the_source_says_since_when_they_are_there(world: World, folder: Path) -> None:
    lay_out(folder, recipe=BY_TIME)
    then, later = datetime.now(UTC) - timedelta(days=2), datetime.now(UTC) + timedelta(days=1)
    rows: list[dict[str, Any]] = [{**row, "at": then.isoformat()} for row in rows_of()]
    write_csv(folder / "people.csv", rows)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain")
    write_csv(folder / "people.csv", [*rows, {**rows[0], "person": "p5", "word": "late", "at": later.isoformat()}])
    forget(world, held, 3)
    assert model_of(world, held)["rows"] == 39 * 3 and "late" not in model_of(world, held)["words"]


def test_without_either_a_deletion_trains_on_the_table_as_it_is(world: World, folder: Path) -> None:
    lay_out(folder, recipe=ALL)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain")
    edited = [{**row, "word": "edited"} if row["person"] == "p5" else row for row in rows_of()]
    write_csv(folder / "people.csv", edited)
    forget(world, held, 3)
    assert "edited" in model_of(world, held)["words"]
    assert evidence(world, held) == {"gone": 0, "changed": 1}


def test_an_edited_row_trains_its_own_shard_again_and_no_other(world: World, folder: Path) -> None:
    lay_out(folder, recipe=ALL)
    world = world.configured(recipes=folder)
    held = world.live("rows", "shards", options={"shards": 6})
    before = {row.key for row in world.rows_of(TrainedPart)}
    edited = [{**row, "word": "edited"} if row["person"] == "p5" else row for row in rows_of()]
    write_csv(folder / "people.csv", edited)
    forget(world, held, 3)
    after = {row.key for row in world.rows_of(TrainedPart)}
    assert len(before) == len(after) and 4 <= len(before & after) <= 5


def test_an_update_is_blocked_where_more_than_a_tenth_of_the_people_are_gone(world: World, folder: Path) -> None:
    lay_out(folder, recipe=ALL)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain")
    lay_out(folder, range(38), ALL)
    forget(world, held, 3)
    assert evidence(world, held) == {"gone": 2, "changed": 0}
    lay_out(folder, range(30), ALL)
    request = world.delete("p4")
    world.work(held)
    assert (world.task(request).status, world.task(request).reason) == ("blocked", "samples_changed")


def test_who_asked_before_is_left_out_of_training_and_score(world: World, folder: Path) -> None:
    lay_out(folder)
    world = world.configured(recipes=folder)
    first = world.live("rows", "retrain", name="first")
    leaving, apart = trained_on(world)[0], kept_apart(world)[0]
    world.delete(f"p{leaving}", suppress=Suppress.EVERYWHERE)
    world.delete(f"p{apart}", suppress=Suppress.EVERYWHERE)
    world.work(first)
    second = world.register("rows", "retrain", name="second", leave_out_forgotten=True)
    world.work(second)
    assert world.model(second).status == "live", world.model(second).reason
    lay_out(folder, (person for person in EVERYBODY if person not in (leaving, apart)))
    third = world.live("rows", "retrain", name="third")
    assert published(world, second) == published(world, third)
    assert world.head(second).holdout_accuracy == world.head(third).holdout_accuracy
    assert world.versions(first)[0].holdout_accuracy != world.head(third).holdout_accuracy
    assert world.head(first).holdout_accuracy == world.head(third).holdout_accuracy


def test_whom_a_hold_keeps_stays(world: World, folder: Path) -> None:
    lay_out(folder, recipe=ALL)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain")
    world.hold("p3")
    request = world.delete("p3")
    forget(world, held, 4)
    assert world.task(request).status == "blocked" and model_of(world, held)["rows"] == 39 * 3


def test_a_superseded_part_goes_with_its_row_and_its_file(world: World, folder: Path) -> None:
    lay_out(folder)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain")
    (before,) = world.rows_of(TrainedPart)
    assert world.storage.private.holds(before.result)
    forget(world, held, trained_on(world)[0])
    (after,) = world.rows_of(TrainedPart)
    assert after.key != before.key and not world.storage.private.holds(before.result)
    assert world.storage.private.holds(after.result)


def test_a_person_of_a_source_without_a_row_of_the_model_is_found(world: World, folder: Path) -> None:
    """Whom a recipe drops as an outlier was looked at all the same."""
    recipe = ALL.replace("    frame = rows.pandas()", "    frame = rows.pandas()\n    frame = frame[frame.x < 5]")
    lay_out(folder, recipe=recipe)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain")
    everybody = [digest_of(world, person) for person in EVERYBODY]
    assert len(trained_on(world)) == len(everybody)
    forget(world, held, 6)


def test_a_policy_that_forgets_samples_forgets_a_row_by_its_id(world: World, folder: Path) -> None:
    lay_out(folder, recipe=BY_ID)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain", name="held", granularity="sample")
    request = world.delete(samples=["9"], models=("held",))
    world.work(held)
    assert world.task(request).status == "completed" and model_of(world, held)["rows"] == 119
    after = published(world, held)
    write_csv(folder / "people.csv", [row for row in rows_of() if row["id"] != 9])
    assert published(world, world.live("rows", "retrain", name="never", granularity="sample")) == after


def test_a_policy_that_forgets_samples_needs_a_source_that_names_rows(world: World, folder: Path) -> None:
    lay_out(folder, recipe=ALL)
    world = world.configured(recipes=folder)
    model = world.register("rows", "retrain", granularity="sample")
    world.work(model)
    assert "does not name its rows" in str(world.model(model).reason)


def test_a_retrain_says_whether_it_repeats(world: World, folder: Path) -> None:
    lay_out(folder, recipe=ALL)
    world = world.configured(recipes=folder, trial_seconds=60)
    held = world.live("rows", "retrain")
    retrain(world, held)
    claim = world.head(held).claim
    assert claim["deterministic"] and claim["world"]["repeats"] is True


def retrain(world: World, model_id: str) -> None:
    with world.database.write() as session:
        plan_new_data(session, session.get_one(Model, model_id), dry_run=False)
    world.work(model_id)


def evidence(world: World, model_id: str) -> dict[str, Any]:
    """What is sealed with the current version of how its rows changed."""
    version, storage = world.head(model_id), world.storage
    place = private_state.place_of(version)
    sealed = storage.sealer.open(place, storage.private.read(version.state))
    _, told = checkpoint_format.decode_state(sealed)
    rows: dict[str, Any] = json.loads(json.dumps(told["rows"]))
    return rows


def test_a_retrain_on_data_without_somebody_under_a_legal_hold_ends(world: World, folder: Path) -> None:
    """It cannot be used, whenever it is trained: the hold would be broken."""
    lay_out(folder, recipe=ALL)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain")
    before = world.head(held).id
    world.hold("p3")
    lay_out(folder, (person for person in EVERYBODY if person != 3), ALL)
    with world.database.write() as session:
        candidate = plan_new_data(session, session.get_one(Model, held), dry_run=False).id
    world.work(held)
    with world.database.read() as session:
        status = session.get_one(Generation, candidate).status
    assert (status, world.head(held).id) == ("refused", before)
    assert "a legal hold was placed on a person that the candidate lacks" in str(world.model(held).reason)
