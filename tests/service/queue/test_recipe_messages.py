"""The message of a recipe's error is kept until a person asks to be forgotten."""

from __future__ import annotations

import json

import pytest

from expunge_service.infra.tables import AuditEntry, Generation, Model
from expunge_service.queue import ADVICE, drop_messages, hint_of, refuse
from tests.workers.worlds import World


@pytest.mark.parametrize("advice", [ADVICE, "Run the recipe by itself, correct it, and register it again."])
def test_a_message_goes_with_the_next_deletion_request(world: World, advice: str) -> None:
    """A worker of before kept it; whatever advice follows it."""
    model_id = world.register("bad", "retrain")
    world.work(model_id)
    reason = f'The recipe raised ValueError at line 2 of r.py. It says: "row of "person-7" is bad" {advice}'
    generation = world.generation(model_id)
    world.change(Model, model_id, reason=reason)
    world.change(Generation, generation.id, report={"refused": {"retrain": reason}})
    assert drop_messages(world.database) == 0
    world.delete("somebody")
    assert (drop_messages(world.database), drop_messages(world.database)) == (1, 0)
    reason, report = str(world.model(model_id).reason), world.generation(model_id).report
    assert "person-7" not in reason + json.dumps(report)
    assert reason == f"The recipe raised ValueError at line 2 of r.py. {advice}"


def test_a_message_commands_no_terminal() -> None:
    """It may quote a row that a stranger wrote."""
    said = hint_of(ValueError("row \x1b]0;mine\x07\x1b[2J\x9b31m,\n\u202ezo\xeb \u540d is\tbad"))
    assert said == f'It says: "row ]0;mine [2J 31m, zo\xeb \u540d is bad" {ADVICE}'


def test_a_message_is_in_no_audit_entry(world: World) -> None:
    """The operator reads it at the model; the log keeps what it has."""
    model_id = world.register()
    with world.database.write() as session:
        model = session.get_one(Model, model_id)
        generation = session.get_one(Generation, model.generation_id)
        refuse(session, model, generation, "The recipe raised ValueError.", hint_of(ValueError("person-7 is bad")))
    assert "person-7" in str(world.model(model_id).reason)
    recorded = "".join(entry.body for entry in world.rows_of(AuditEntry))
    assert "preparation.refused" in world.kinds() and "raised ValueError" in recorded and "person-7" not in recorded
