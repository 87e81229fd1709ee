"""The message of a recipe's error is kept until a person asks to be forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from expunge.service.infra.tables import Generation, Model
from expunge.service.queue import ADVICE, drop_messages, hint_of
from tests.workers.worlds import World


@pytest.mark.parametrize("advice", [ADVICE, "Run the recipe by itself, correct it, and register it again."])
def test_a_message_goes_with_the_next_deletion_request(world: World, tmp_path: Path, advice: str) -> None:
    """Whatever advice follows it: that of an earlier version stands in rows of then."""
    world.process = world.configured(recipes=tmp_path).process
    (tmp_path / "r.py").write_text("def recipe():\n    raise ValueError('row of \"person-7\" is bad')\n")
    model_id = world.register("r", "retrain")
    world.work(model_id)
    assert drop_messages(world.database) == 0
    assert "person-7" in str(world.model(model_id).reason)
    with world.database.write() as session:
        model = session.get_one(Model, model_id)
        generation = session.get_one(Generation, model.generation_id)
        model.reason = str(model.reason).replace(ADVICE, advice)
        generation.report = json.loads(json.dumps(generation.report).replace(ADVICE, advice))
    world.delete("somebody")
    assert (drop_messages(world.database), drop_messages(world.database)) == (1, 0)
    reason, report = str(world.model(model_id).reason), world.generation(model_id).report
    assert "person-7" not in reason + json.dumps(report)
    assert reason == f"The recipe raised ValueError at line 2 of r.py. {advice}"


def test_a_message_commands_no_terminal() -> None:
    """It may quote a row that a stranger wrote."""
    said = hint_of(ValueError("row \x1b]0;mine\x07\x1b[2J\x9b31m,\n\u202ezo\xeb \u540d is\tbad"))
    assert said == f'It says: "row ]0;mine [2J 31m, zo\xeb \u540d is bad" {ADVICE}'
