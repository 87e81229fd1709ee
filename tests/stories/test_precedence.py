"""Deletions through the real queue, while the only worker is busy with another model; and what they keep out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.stack import Stack
from tests.stories.test_deletions import expunge, run
from tests.stories.test_planned_stops import FOR_LONG_SECONDS, write_seconds

WORK_UNITS = 4


@pytest.mark.drill  # with a worker of this process: tests/service/queue/test_precedence.py
def test_a_deletion_is_published_while_the_only_worker_prepares_another_model(stack: Stack) -> None:
    small = stack.live("tiny")
    big = stack.register("shared_out")
    path = f"/v1/models/{big}"
    stack.eventually(lambda: stack.client.get(path)["preparation"]["work_units"], bool)
    request = stack.delete(small, subject_id="tiny-person-3")
    done = stack.ended(request)
    state = stack.client.get(path)
    assert done["status"] == "completed" and stack.head(small)["number"] == 2
    assert state["status"] == "preparing" and state["preparation"]["work_units"]["done"] < WORK_UNITS, state
    assert stack.prepared(big)["status"] == "live"


def test_who_was_deleted_by_the_command_line_is_not_back_with_the_next_registration(stack: Stack) -> None:
    name = stack.live("returning", leave_out_forgotten=True)
    request = expunge(stack, "delete", "--model", name, "--subject", "returning-person-1", "--wait")
    assert request["status"] == "completed"
    again = stack.register("returning")
    assert request["id"] in stack.prepared(again)["reason"]
    left_out = stack.live("returning", leave_out_forgotten=True)
    kept_out = stack.prepared(left_out)["preparation"]["report"]["kept_out"]["requests"]
    assert {"request": request["id"], "samples": 3} in kept_out


def test_the_command_line_deletes_from_every_model_and_says_where_else_a_person_is(stack: Stack) -> None:
    names = [stack.live("returning", leave_out_forgotten=True) for _ in range(2)]
    told = run(stack, "delete", "--model", names[0], "--subject", "returning-person-2", "--json")
    left: list[Any] = json.loads(told.stdout)["remains_in"]
    assert names[1] in left and names[0] not in left
    assert f"other models hold this person, or may: {', '.join(left)}" in told.stderr
    everywhere = expunge(stack, "delete", "--subject", "returning-person-3", "--wait")
    assert set(names) <= {part["model"] for part in everywhere["models"]} and everywhere["remains_in"] == []


@pytest.mark.drill
def test_an_updater_publishes_while_the_only_worker_is_in_a_training_that_lasts(stack: Stack) -> None:
    """The training ends with its worker, and that is after the deletions have ended."""
    small = stack.live("tiny")
    stack.start("updater")
    try:
        write_seconds(stack, FOR_LONG_SECONDS)
        long = stack.register("lasting", method="retrain")
        path = f"/v1/models/{long}"
        stack.eventually(
            lambda: stack.client.get(path), lambda state: str(state["preparation"]["phase"]).startswith("train")
        )
        stack.forgotten(small, subject_id="tiny-person-4")
        stack.forgotten(small, subject_id="tiny-person-5")
        assert stack.client.get(path)["status"] == "preparing"
        assert stack.head(small)["number"] == 3
        write_seconds(stack, 0)
        stack.restart("worker")
        assert stack.prepared(long)["status"] == "live"
    finally:
        stack.stop("updater")
