"""Of the rows that a recipe is handed no byte is left: after a part, after a deletion, after a kill in a world."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from expunge_workers.runtime.part_program import descendants
from tests.harness.residue import complain, disguises, found, seek
from tests.harness.stack import Stack

PERSON, WORD, NUMBER = "zenobia.quist@example.org", "quetzalcoatlus", 7391.15625
RECIPES = {"canary_rows": ("retrain", PERSON), "canary_samples": ("newton", "ottokar.zyx@example.org")}
"""the method of each, and who leaves"""


@pytest.fixture
def needles(stack: Stack) -> list[bytes]:
    """Write the table, and return everything by which the person could be recognised."""
    rows = [f"p{row % 30},{row * 0.5},w{row % 5}" for row in range(90)]
    for recipe, (_, person) in RECIPES.items():
        lines = ["person,x,word", *rows, f"{person},{NUMBER},{WORD}"]
        (stack.settings.recipes / f"{recipe}.csv").write_text("\n".join(lines) + "\n")
    people = [person for _, person in RECIPES.values()]
    spelled = [needle for word in (*people, WORD, str(NUMBER)) for needle in disguises(word)]
    numbers = [struct.pack(kind, number) for number in (NUMBER, NUMBER / 100.0) for kind in ("<d", "<f")]
    return [*spelled, *numbers]


@pytest.mark.both_engines
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_byte_of_a_row_is_left_anywhere(stack: Stack, needles: list[bytes], recipe: str) -> None:
    method, person = RECIPES[recipe]
    name = stack.live(recipe, method)
    complain(stack, person)
    assert seek(stack, person) == ["holds"]
    assert found(stack, needles) == [], "of a part that ended"
    stack.forgotten(name, subject_id=person)
    assert found(stack, needles) == [], "of a deletion"
    assert seek(stack, person) == ["forgot"]


@pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
def test_no_process_and_no_byte_is_left_of_a_worker_that_was_killed_in_a_world(
    stack: Stack, needles: list[bytes]
) -> None:
    name = stack.register("canary_rows", "retrain")
    child = stack.processes["worker"].process
    assert child is not None
    stack.eventually(lambda: len(descendants(child.pid)), lambda count: count >= 4)  # template, reader, world, part
    time.sleep(0.5)
    below = descendants(child.pid)
    stack.kill("worker")
    stack.eventually(lambda: {each for each in below if Path(f"/proc/{each}").exists()}, lambda left: not left)
    assert found(stack, needles) == []
    stack.start("worker")
    assert stack.prepared(name)["status"] == "live"
    stack.forgotten(name, subject_id=PERSON)
    assert found(stack, needles) == []
